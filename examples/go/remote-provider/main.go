// A provider of clusters in another process: each file <name>.kubeconfig in a directory is a cluster.
//
//	go run ./remote-provider -listen 127.0.0.1:7500 -dir ./clusters
//	reclock dev --provider remote --set address=127.0.0.1:7500 controller.py
package main

import (
	"bytes"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "reclock.dev/examples/stubs/reclock/discovery/v1"
)

type provider struct {
	pb.UnimplementedClusterProviderServiceServer
	directory string
}

func main() {
	listen := flag.String("listen", "127.0.0.1:7500", "address to serve on")
	directory := flag.String("dir", "clusters", "directory of <name>.kubeconfig files")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterClusterProviderServiceServer(server, &provider{directory: *directory})
	log.Printf("provides the clusters of %s on %s", *directory, listener.Addr())
	log.Fatal(server.Serve(listener))
}

// ProvideClusters sends the complete set, a mark, then changes, for as long as discovery listens.
func (p *provider) ProvideClusters(_ *pb.ProvideClustersRequest, stream grpc.ServerStreamingServer[pb.ProvideClustersResponse]) error {
	known := map[string][]byte{}
	for synced := false; ; synced = true {
		if err := p.tell(known, stream); err != nil {
			return err
		}
		if !synced {
			mark := &pb.ProvideClustersResponse{Event: &pb.ProvideClustersResponse_Synced{Synced: true}}
			if err := stream.Send(mark); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// tell sends what is different from what is known. A directory that cannot be read changes nothing.
func (p *provider) tell(known map[string][]byte, stream grpc.ServerStreamingServer[pb.ProvideClustersResponse]) error {
	paths, err := filepath.Glob(filepath.Join(p.directory, "*.kubeconfig"))
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".kubeconfig")
		found[name] = true
		kubeconfig, err := os.ReadFile(path)
		if err != nil || bytes.Equal(kubeconfig, known[name]) {
			continue
		}
		cluster := &pb.ProvideClustersResponse_Found{Name: name, Kubeconfig: kubeconfig, Labels: map[string]string{"provided-by": "go"}}
		if err := stream.Send(&pb.ProvideClustersResponse{Event: &pb.ProvideClustersResponse_Found_{Found: cluster}}); err != nil {
			return err
		}
		known[name] = kubeconfig
	}
	for name := range known {
		if !found[name] {
			if err := stream.Send(&pb.ProvideClustersResponse{Event: &pb.ProvideClustersResponse_Gone{Gone: name}}); err != nil {
				return err
			}
			delete(known, name)
		}
	}
	return nil
}
