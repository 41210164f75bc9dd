package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// The API groups whose objects may be aggregated, or are written to subresources of such.
var tabled = []schema.GroupVersion{
	{Version: "v1"},
	{Group: "apps", Version: "v1"},
	{Group: "authentication.k8s.io", Version: "v1"},
	{Group: "autoscaling", Version: "v1"},
	{Group: "autoscaling", Version: "v2"},
	{Group: "batch", Version: "v1"},
	{Group: "coordination.k8s.io", Version: "v1"},
	{Group: "discovery.k8s.io", Version: "v1"},
	{Group: "events.k8s.io", Version: "v1"},
	{Group: "networking.k8s.io", Version: "v1"},
	{Group: "policy", Version: "v1"},
	{Group: "rbac.authorization.k8s.io", Version: "v1"},
	{Group: "storage.k8s.io", Version: "v1"},
}

// Messages whose JSON is no object of their fields.
var special = map[string]string{
	"k8s.io/apimachinery/pkg/api/resource.Quantity":   "Q",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":       "T",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":  "M",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":   "R",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":    "R",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString": "I",
}

// table is what the front's translation of protobuf bodies knows of Kubernetes' types. A field is
// [JSON name, kind, form]; kind: s string, b bool, i integer, d double, y bytes, a capital letter as in `special`,
// else a message of `Types`; form: "" plain (zero is as absent), * optional, [] repeated, {} map by string,
// ~ inline, [[]] map of lists.
type table struct {
	Roots map[string]string               `json:"roots"` // "<group>/<version>/<kind>" -> message
	Types map[string]map[string][3]string `json:"types"` // message -> field number -> field
}

// writeTypes prints the table, from the struct tags of client-go's own types.
func writeTypes(sink io.Writer) error {
	t := &table{Roots: map[string]string{}, Types: map[string]map[string][3]string{}}
	for _, group := range tabled {
		for kind, goType := range scheme.Scheme.KnownTypes(group) {
			meta, isObject := goType.FieldByName("ObjectMeta")
			if !isObject || meta.Type != reflect.TypeOf(metav1.ObjectMeta{}) {
				continue // lists, options and the like
			}
			name, err := t.message(goType)
			if err != nil {
				return err
			}
			t.Roots[fmt.Sprintf("%s/%s/%s", group.Group, group.Version, kind)] = name
		}
	}
	options, err := t.message(reflect.TypeOf(metav1.DeleteOptions{}))
	if err != nil {
		return err
	}
	t.Roots["DeleteOptions"] = options // whatever its group and version
	return json.NewEncoder(sink).Encode(t)
}

// message adds a struct type, and what it is made of, to the table; it returns its name there.
func (t *table) message(goType reflect.Type) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(goType.PkgPath(), "k8s.io/api/"), "k8s.io/apimachinery/pkg/")
	name := path + "." + goType.Name()
	if _, known := t.Types[name]; known {
		return name, nil
	}
	fields := map[string][3]string{}
	t.Types[name] = fields
	for i := range goType.NumField() {
		field := goType.Field(i)
		tag, ok := field.Tag.Lookup("protobuf")
		if !ok || tag == "-" {
			continue
		}
		parts := strings.Split(field.Tag.Get("json"), ",")
		kind, form, err := t.field(field.Type)
		if err != nil {
			return "", fmt.Errorf("%s.%s: %w", name, field.Name, err)
		}
		if parts[0] == "" || slices.Contains(parts, "inline") {
			form = "~"
		}
		fields[strings.Split(tag, ",")[1]] = [3]string{parts[0], kind, form}
	}
	return name, nil
}

// field tells kind and form of a Go type.
func (t *table) field(goType reflect.Type) (kind, form string, err error) {
	switch goType.Kind() {
	case reflect.Pointer:
		kind, _, err = t.field(goType.Elem())
		return kind, "*", err
	case reflect.Slice:
		if goType.Elem().Kind() == reflect.Uint8 {
			return "y", "", nil
		}
		kind, _, err = t.field(goType.Elem())
		return kind, "[]", err
	case reflect.Map:
		kind, form, err = t.field(goType.Elem())
		if form == "[]" { // a list in a map is a message with the list as its field 1
			return kind, "[[]]", err
		}
		return kind, "{}", err
	case reflect.Struct:
		if letter, ok := special[goType.PkgPath()+"."+goType.Name()]; ok {
			return letter, "", nil
		}
		kind, err = t.message(goType)
		return kind, "", err
	case reflect.String:
		return "s", "", nil
	case reflect.Bool:
		return "b", "", nil
	case reflect.Int32, reflect.Int64:
		return "i", "", nil
	case reflect.Float64:
		return "d", "", nil
	}
	return "", "", fmt.Errorf("no JSON is known for a %s", goType)
}
