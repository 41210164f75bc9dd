// Nanoseconds of one add + get + done at a constant backlog, as bench_queue.py does it for Reclock's queue.
//
// Keys are read from a file ("cluster namespace/name" a line), so that both programs use the same ones in the same
// order; the first -waiting of them wait, the others take turns. Prints "<queue> <ns of wall time> <ns of CPU>".
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// request has the shape of what multicluster-runtime queues: a cluster, and the namespaced name of an object.
type request struct {
	cluster string
	object  types.NamespacedName
}

type queue interface {
	Add(request)
	Get() (request, bool)
	Done(request)
}

// cpu is the process's CPU time so far: the garbage collector works for the queue, too.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func read(path string) []request {
	file, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer file.Close()
	var keys []request
	for lines := bufio.NewScanner(file); lines.Scan(); {
		cluster, key, _ := strings.Cut(lines.Text(), " ")
		namespace, name, _ := strings.Cut(key, "/")
		keys = append(keys, request{cluster, types.NamespacedName{Namespace: namespace, Name: name}})
	}
	return keys
}

func run(q queue, idle []request, cycles int, at *int) {
	for range cycles {
		q.Add(idle[*at])
		item, _ := q.Get()
		idle[*at] = item
		q.Done(item)
		if *at++; *at == len(idle) {
			*at = 0
		}
	}
}

func measure(name string, q queue, keys []request, waiting, rounds int) {
	for _, key := range keys[:waiting] {
		q.Add(key)
	}
	idle, at := append([]request(nil), keys[waiting:]...), 0
	cycles := max(2000, min(50_000, len(idle)))
	run(q, idle, cycles, &at)
	var wall, spent []float64
	for range rounds {
		began, before := time.Now(), cpu()
		run(q, idle, cycles, &at)
		wall = append(wall, float64(time.Since(began).Nanoseconds())/float64(cycles))
		spent = append(spent, float64((cpu()-before).Nanoseconds())/float64(cycles))
	}
	sort.Float64s(wall)
	sort.Float64s(spent)
	fmt.Printf("%s %.1f %.1f\n", name, wall[len(wall)/2], spent[len(spent)/2])
}

func main() {
	path := flag.String("keys", "", "file of keys")
	waiting := flag.Int("waiting", 10_000, "keys that wait")
	rounds := flag.Int("rounds", 7, "chunks measured")
	flag.Parse()
	keys := read(*path)
	measure("client-go", workqueue.NewTyped[request](), keys, *waiting, *rounds)
	measure("controller-runtime", priorityqueue.New[request]("bench"), keys, *waiting, *rounds)
}
