package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
)

// How many objects of each kind are made up.
const samplesOfKind = 4

// sample is one made-up object: as client-go writes it in protobuf, and in JSON.
type sample struct {
	Kind     string          `json:"kind"`
	Protobuf []byte          `json:"protobuf"`
	JSON     json.RawMessage `json:"json"`
}

// writeSamples prints objects of every tabled kind with random content in every field, one JSON line each.
func writeSamples(sink io.Writer) error {
	filler := newFiller()
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	out := json.NewEncoder(sink)
	for _, group := range tabled {
		for kind, goType := range scheme.Scheme.KnownTypes(group) {
			if _, isObject := goType.FieldByName("ObjectMeta"); !isObject && kind != "DeleteOptions" {
				continue
			}
			for range samplesOfKind {
				object, ok := reflect.New(goType).Interface().(runtime.Object)
				if !ok {
					return fmt.Errorf("%s is no object", kind)
				}
				filler.Fill(object)
				object.GetObjectKind().SetGroupVersionKind(group.WithKind(kind))
				encoded, err := runtime.Encode(encoder, object)
				if err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
				plain, err := json.Marshal(object)
				if err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
				if err := out.Encode(sample{group.String() + "/" + kind, encoded, plain}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func newFiller() *randfill.Filler {
	return randfill.NewWithSeed(1).NilChance(0.3).NumElements(1, 2).MaxDepth(12).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(1<<40), resource.DecimalSI)
		},
		func(t *metav1.Time, c randfill.Continue) { t.Time = time.Unix(c.Int63n(1<<32), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			t.Time = time.Unix(c.Int63n(1<<32), c.Int63n(1e6)*1000)
		},
		func(f *metav1.FieldsV1, c randfill.Continue) { f.Raw = []byte(`{"f:a":{"k:{\"b\":1}":{}}}`) },
		func(e *runtime.RawExtension, c randfill.Continue) { e.Raw = []byte(`{"spec":{"c":[1,2.5]}}`) },
		func(i *intstr.IntOrString, c randfill.Continue) {
			if *i = intstr.FromInt32(c.Int31()); c.Bool() {
				*i = intstr.FromString(c.String(0))
			}
		},
		func(*metav1.TypeMeta, randfill.Continue) {}, // protobuf has none of objects within objects
	)
}

// compare reads lines {kind, json, protobuf: unused, got} and prints those whose `got` is another object.
func compare(source io.Reader, sink io.Writer) error {
	lines := bufio.NewScanner(source)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var pair struct {
			sample
			Got json.RawMessage `json:"got"`
		}
		if err := json.Unmarshal(lines.Bytes(), &pair); err != nil {
			return err
		}
		decode := scheme.Codecs.UniversalDeserializer().Decode
		want, _, err := decode(pair.JSON, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", pair.Kind, err)
		}
		got, _, err := decode(pair.Got, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", pair.Kind, err)
		}
		if !equality.Semantic.DeepEqual(want, got) {
			wanted, _ := json.Marshal(want)
			had, _ := json.Marshal(got)
			if _, err := fmt.Fprintf(sink, "%s\nwant %s\ngot  %s\n", pair.Kind, wanted, had); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}
