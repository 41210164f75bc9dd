// Workers that do nothing with their requests, for bench_work.py: as many streams as the first argument says.
// Built inside of examples/go, whose worker it is.
package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"sync"

	pb "reclock.dev/examples/stubs/reclock/reconciler/v1"
	"reclock.dev/examples/worker"
)

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var all sync.WaitGroup
	for number := 0; number < count; number++ {
		all.Add(1)
		go func() {
			defer all.Done()
			register := &pb.Register{
				Controller:  "bench",
				Worker:      "go-" + strconv.Itoa(number),
				MaxInFlight: 50,
				Sources:     []*pb.Source{{Version: "v1", Resource: "configmaps", To: &pb.Source_ForObject{ForObject: &pb.ForObject{}}}},
			}
			err := worker.Run(context.Background(), register, func(context.Context, *pb.Request) error { return nil })
			if err != nil {
				log.Print(err)
			}
		}()
	}
	all.Wait()
}
