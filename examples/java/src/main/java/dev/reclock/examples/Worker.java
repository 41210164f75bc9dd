package dev.reclock.examples;

import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Phaser;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import reclock.reconciler.v1.Reconciler.Done;
import reclock.reconciler.v1.Reconciler.Drain;
import reclock.reconciler.v1.Reconciler.Heartbeat;
import reclock.reconciler.v1.Reconciler.Register;
import reclock.reconciler.v1.Reconciler.Renewed;
import reclock.reconciler.v1.Reconciler.Request;
import reclock.reconciler.v1.Reconciler.Resume;
import reclock.reconciler.v1.Reconciler.WorkRequest;
import reclock.reconciler.v1.Reconciler.WorkResponse;
import reclock.reconciler.v1.ReconcilerServiceGrpc;

/**
 * Speaks reclock.reconciler.v1.ReconcilerService/Work: registers a controller, calls a function for each request, renews
 * leases, and connects anew when the stream ends.
 */
final class Worker {
  /** Makes the world as it should be for one request. Its thread is interrupted when the lease has ended. */
  interface Reconcile {
    void call(Request request) throws Exception;
  }

  private static final Set<Status.Code> FINAL = Set.of(
      Status.Code.INVALID_ARGUMENT, Status.Code.FAILED_PRECONDITION, Status.Code.PERMISSION_DENIED,
      Status.Code.UNAUTHENTICATED, Status.Code.UNIMPLEMENTED);

  private final Register register;
  private final Reconcile reconcile;
  private volatile Session current;
  private volatile boolean ending;

  private Worker(Register register, Reconcile reconcile) {
    this.register = register.toBuilder().setProtocolVersion(1).build();
    this.reconcile = reconcile;
  }

  /** Works until SIGINT or SIGTERM: then running calls may end, and the stream is closed in order. */
  static void run(Register register, Reconcile reconcile) throws Exception {
    Worker worker = new Worker(register, reconcile);
    Thread main = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> worker.end(main)));
    worker.work();
  }

  private void end(Thread main) {
    ending = true;
    Session session = current;
    if (session != null) {
      session.leave();
    }
    try {
      main.join(10_000);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void work() throws Exception {
    String address = System.getenv().getOrDefault("RECLOCK_RECONCILER", "127.0.0.1:7404");
    ManagedChannel channel = ManagedChannelBuilder.forTarget(address).usePlaintext().build();
    try {
      for (boolean again = false; !ending; again = true) {
        Session session = new Session(channel, again);
        current = session;
        Status status = session.ended.get();
        session.stop();
        if (ending) {
          return;
        }
        if (FINAL.contains(status.getCode())) {
          throw new IllegalStateException("the service refuses " + register.getController() + ": " + status);
        }
        System.err.println("the stream has ended (" + status + "); connecting anew");
        Thread.sleep(1000);
      }
    } finally {
      channel.shutdownNow();
    }
  }

  private static Metadata identity() throws IOException {
    Metadata metadata = new Metadata();
    String path = System.getenv("RECLOCK_TOKEN_FILE");
    if (path != null) {
      var key = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
      metadata.put(key, "Bearer " + Files.readString(Path.of(path)).strip());
    }
    return metadata;
  }

  private static final class Held {
    volatile long renewed = System.nanoTime();
    volatile boolean lost;
    volatile Future<?> call;

    void stop() {
      lost = true;
      if (call != null) {
        call.cancel(true);
      }
    }
  }

  /** One stream. What runs when it ends is interrupted: its leases end, and somebody gets those requests again. */
  private final class Session implements StreamObserver<WorkResponse> {
    final CompletableFuture<Status> ended = new CompletableFuture<>();
    private final Map<String, Held> running = new ConcurrentHashMap<>();
    private final Map<Long, Long> beats = new ConcurrentHashMap<>();
    private final ExecutorService calls = Executors.newCachedThreadPool();
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
    private final Phaser answered = new Phaser(1);
    private final StreamObserver<WorkRequest> out;
    private long sequence;
    private long lease;

    Session(ManagedChannel channel, boolean again) throws IOException {
      var stub = ReconcilerServiceGrpc.newStub(channel)
          .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(identity()));
      out = stub.work(this);
      send(WorkRequest.newBuilder().setRegister(register));
      if (again) { // nothing of the last stream runs any more: what it held goes back at once
        send(WorkRequest.newBuilder().setResume(Resume.getDefaultInstance()));
      }
    }

    private synchronized void send(WorkRequest.Builder message) {
      try {
        out.onNext(message.build());
      } catch (IllegalStateException closed) {
        // The stream has ended meanwhile: `ended` says so.
      }
    }

    void leave() {
      send(WorkRequest.newBuilder().setDrain(Drain.getDefaultInstance()));
      close();
    }

    /** Ends our side once all calls have been answered. */
    private void close() {
      answered.arriveAndAwaitAdvance();
      synchronized (this) {
        out.onCompleted();
      }
    }

    void stop() {
      timer.shutdownNow();
      running.values().forEach(Held::stop);
      calls.shutdownNow();
    }

    @Override
    public void onNext(WorkResponse response) {
      switch (response.getMessageCase()) {
        case REGISTERED -> {
          lease = nanos(response.getRegistered().getLease());
          long beat = nanos(response.getRegistered().getHeartbeat());
          timer.scheduleAtFixedRate(this::renew, beat, beat, TimeUnit.NANOSECONDS);
        }
        case REQUEST -> start(response.getRequest());
        case RENEWED -> renewed(response.getRenewed());
        case CANCELLED -> {
          Held held = running.get(response.getCancelled().getToken());
          if (held != null) {
            held.stop();
          }
        }
        case PROBLEM -> System.err.println("the service says: " + response.getProblem().getMessage());
        case DRAIN -> new Thread(this::close).start();
        default -> { } // of a later version of the protocol
      }
    }

    @Override
    public void onError(Throwable error) {
      ended.complete(Status.fromThrowable(error));
    }

    @Override
    public void onCompleted() {
      ended.complete(Status.OK);
    }

    private void start(Request request) {
      Held held = new Held();
      running.put(request.getToken(), held);
      answered.register();
      held.call = calls.submit(() -> call(request, held));
    }

    private void call(Request request, Held held) {
      Done.Builder done = Done.newBuilder().setToken(request.getToken());
      try {
        reconcile.call(request);
      } catch (Exception error) {
        done.setError(error.toString());
        if (!held.lost) {
          System.err.printf("%s/%s/%s: %s%n", request.getCluster(), request.getNamespace(), request.getName(), error);
        }
      }
      running.remove(request.getToken());
      if (!held.lost) {
        send(WorkRequest.newBuilder().setDone(done));
      }
      answered.arriveAndDeregister();
    }

    /** Sends a heartbeat, and stops calls whose lease was not renewed for half of its length. */
    private void renew() {
      long now = System.nanoTime();
      beats.put(++sequence, now);
      beats.remove(sequence - 10);
      running.values().stream().filter(one -> now - one.renewed > lease / 2).forEach(Held::stop);
      send(WorkRequest.newBuilder().setHeartbeat(Heartbeat.newBuilder().setSequence(sequence)));
    }

    private void renewed(Renewed message) {
      Long sent = beats.get(message.getSequence());
      for (String token : message.getTokensList()) {
        Held held = running.get(token);
        if (held != null && sent != null && sent > held.renewed) {
          held.renewed = sent;
        }
      }
    }
  }

  private static long nanos(com.google.protobuf.Duration duration) {
    return duration.getSeconds() * 1_000_000_000L + duration.getNanos();
  }
}
