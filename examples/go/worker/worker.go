// Package worker speaks reclock.reconciler.v1.ReconcilerService/Work: it registers a controller, calls a function for
// each request, renews leases, and connects anew when the stream ends.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "reclock.dev/examples/stubs/reclock/reconciler/v1"
)

// Reconcile makes the world as it should be for one request. Its context ends when the lease does.
type Reconcile func(ctx context.Context, request *pb.Request) error

// Run works until the context ends: then running calls may end, and the stream is closed in order.
func Run(ctx context.Context, register *pb.Register, reconcile Reconcile) error {
	address := os.Getenv("RECLOCK_RECONCILER")
	if address == "" {
		address = "127.0.0.1:7404"
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewReconcilerServiceClient(connection)
	register.ProtocolVersion = 1
	for again := false; ; again = true {
		err := work(ctx, client, register, reconcile, again)
		if ctx.Err() != nil {
			return nil
		}
		switch status.Code(err) {
		case codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
			return fmt.Errorf("the service refuses %s: %w", register.Controller, err)
		}
		log.Printf("the stream has ended (%v); connecting anew", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// session is one stream. What runs when it ends is cancelled: its leases end, and somebody gets those requests again.
type session struct {
	stream  grpc.BidiStreamingClient[pb.WorkRequest, pb.WorkResponse]
	sending sync.Mutex // a stream takes one Send at a time
	mutex   sync.Mutex
	running map[string]*held
	lease   time.Duration
	beats   map[int64]time.Time
	calls   sync.WaitGroup
}

type held struct {
	cancel  context.CancelFunc
	renewed time.Time
	lost    bool
}

func work(ctx context.Context, client pb.ReconcilerServiceClient, register *pb.Register, reconcile Reconcile, again bool) error {
	streamContext, cancel := context.WithCancel(context.Background())
	defer cancel()
	if path := os.Getenv("RECLOCK_TOKEN_FILE"); path != "" {
		token, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		bearer := "Bearer " + strings.TrimSpace(string(token))
		streamContext = metadata.AppendToOutgoingContext(streamContext, "authorization", bearer)
	}
	stream, err := client.Work(streamContext)
	if err != nil {
		return err
	}
	s := &session{stream: stream, running: map[string]*held{}, beats: map[int64]time.Time{}}
	defer s.calls.Wait()
	defer cancel()
	s.send(&pb.WorkRequest{Message: &pb.WorkRequest_Register{Register: register}})
	if again { // nothing of the last stream runs any more: what it held goes back at once
		s.send(&pb.WorkRequest{Message: &pb.WorkRequest_Resume{Resume: &pb.Resume{}}})
	}
	go s.leave(ctx, streamContext)
	for {
		response, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch message := response.Message.(type) {
		case *pb.WorkResponse_Registered:
			s.lease = message.Registered.Lease.AsDuration()
			go s.renew(streamContext, message.Registered.Heartbeat.AsDuration())
		case *pb.WorkResponse_Request:
			s.start(streamContext, message.Request, reconcile)
		case *pb.WorkResponse_Renewed:
			s.renewed(message.Renewed)
		case *pb.WorkResponse_Cancelled:
			s.stop(message.Cancelled.Token)
		case *pb.WorkResponse_Problem:
			log.Printf("the service says: %s", message.Problem.Message)
		case *pb.WorkResponse_Drain:
			go s.close()
		}
	}
}

func (s *session) send(message *pb.WorkRequest) {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.stream.Send(message) // a broken stream is Recv's error
}

// leave stops in order when the program is to end.
func (s *session) leave(ctx, stream context.Context) {
	select {
	case <-stream.Done():
	case <-ctx.Done():
		s.send(&pb.WorkRequest{Message: &pb.WorkRequest_Drain{Drain: &pb.Drain{}}})
		s.close()
	}
}

// close ends our side once all calls have been answered.
func (s *session) close() {
	s.calls.Wait()
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.stream.CloseSend()
}

func (s *session) start(ctx context.Context, request *pb.Request, reconcile Reconcile) {
	ctx, cancel := context.WithCancel(ctx)
	one := &held{cancel: cancel, renewed: time.Now()}
	s.mutex.Lock()
	s.running[request.Token] = one
	s.mutex.Unlock()
	s.calls.Add(1)
	go func() {
		defer s.calls.Done()
		defer cancel()
		err := reconcile(ctx, request)
		s.mutex.Lock()
		delete(s.running, request.Token)
		lost := one.lost
		s.mutex.Unlock()
		if lost {
			return
		}
		done := &pb.Done{Token: request.Token}
		if err != nil {
			done.Error = err.Error()
			log.Printf("%s/%s/%s: %v", request.Cluster, request.Namespace, request.Name, err)
		}
		s.send(&pb.WorkRequest{Message: &pb.WorkRequest_Done{Done: done}})
	}()
}

// renew sends heartbeats, and stops calls whose lease was not renewed for half of its length.
func (s *session) renew(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for sequence := int64(1); ; sequence++ {
		s.mutex.Lock()
		s.beats[sequence] = time.Now()
		delete(s.beats, sequence-10)
		for _, one := range s.running {
			if !one.lost && time.Since(one.renewed) > s.lease/2 {
				one.lost = true
				one.cancel()
			}
		}
		s.mutex.Unlock()
		s.send(&pb.WorkRequest{Message: &pb.WorkRequest_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: sequence}}})
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *session) renewed(message *pb.Renewed) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	sent, known := s.beats[message.Sequence]
	for _, token := range message.Tokens {
		if one := s.running[token]; one != nil && known && sent.After(one.renewed) {
			one.renewed = sent
		}
	}
}

func (s *session) stop(token string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if one := s.running[token]; one != nil {
		one.lost = true
		one.cancel()
	}
}
