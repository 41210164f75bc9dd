// Speaks reclock.reconciler.v1.ReconcilerService/Work: registers a controller, calls a function for each request, renews
// leases, and connects anew when the stream ends.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { type ClientDuplexStream, credentials, Metadata, type ServiceError, status } from "@grpc/grpc-js";

import type { Duration } from "./stubs/google/protobuf/duration.js";
import {
  Done,
  ReconcilerServiceClient,
  Register,
  Renewed,
  Request,
  WorkRequest,
  type WorkResponse,
} from "./stubs/reclock/reconciler/v1/reconciler.js";

// Makes the world as it should be for one request. The signal is set when its lease has ended.
export type Reconcile = (request: Request, signal: AbortSignal) => Promise<void>;

const FINAL = [
  status.INVALID_ARGUMENT, status.FAILED_PRECONDITION, status.PERMISSION_DENIED, status.UNAUTHENTICATED,
  status.UNIMPLEMENTED,
];

// Works until SIGINT or SIGTERM: then running calls may end, and the stream is closed in order.
export async function run(register: Partial<Register>, reconcile: Reconcile): Promise<void> {
  const client = new ReconcilerServiceClient(
    process.env.RECLOCK_RECONCILER ?? "127.0.0.1:7404", credentials.createInsecure(),
  );
  const ending = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, () => ending.abort());
  for (let again = false; !ending.signal.aborted; again = true) {
    const session = new Session(client.work(identity()), reconcile);
    const error = await session.run(Register.fromPartial({ ...register, protocolVersion: 1 }), again, ending.signal);
    if (ending.signal.aborted) break;
    if (error !== undefined && FINAL.includes(error.code)) {
      throw new Error(`the service refuses ${register.controller}: ${error.details}`);
    }
    console.error(`the stream has ended (${error?.details ?? "in order"}); connecting anew`);
    await sleep(1000);
  }
  client.close();
}

function identity(): Metadata {
  const metadata = new Metadata();
  const path = process.env.RECLOCK_TOKEN_FILE;
  if (path) metadata.set("authorization", `Bearer ${readFileSync(path, "utf8").trim()}`);
  return metadata;
}

interface Held {
  controller: AbortController;
  renewed: number;
}

// One stream. What runs when it ends is cancelled: its leases end, and somebody gets those requests again.
class Session {
  private readonly running = new Map<string, Held>();
  private readonly calls = new Set<Promise<void>>();
  private readonly beats = new Map<number, number>();
  private sequence = 0;
  private lease = 0;
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly stream: ClientDuplexStream<WorkRequest, WorkResponse>,
    private readonly reconcile: Reconcile,
  ) {}

  // Returns the error that ended the stream; undefined when it ended in order.
  async run(register: Register, again: boolean, ending: AbortSignal): Promise<ServiceError | undefined> {
    const ended = new Promise<ServiceError | undefined>((resolve) => {
      this.stream.on("data", (response: WorkResponse) => this.answer(response));
      this.stream.on("error", (error: ServiceError) => resolve(error));
      this.stream.on("end", () => resolve(undefined));
    });
    const leave = () => {
      this.send({ drain: {} });
      void this.close();
    };
    ending.addEventListener("abort", leave, { once: true });
    this.send({ register });
    if (again) this.send({ resume: { tokens: [], held: [], sole: false } }); // what the last stream held goes back at once
    const error = await ended;
    ending.removeEventListener("abort", leave);
    clearInterval(this.timer);
    for (const one of this.running.values()) one.controller.abort();
    await Promise.all(this.calls);
    return error;
  }

  private send(message: Partial<WorkRequest>): void {
    if (this.stream.writable) this.stream.write(WorkRequest.fromPartial(message));
  }

  // Ends our side once all calls have been answered.
  private async close(): Promise<void> {
    while (this.calls.size > 0) await Promise.all(this.calls);
    this.stream.end();
  }

  private answer(response: WorkResponse): void {
    if (response.registered) {
      this.lease = milliseconds(response.registered.lease);
      this.timer = setInterval(() => this.renew(), milliseconds(response.registered.heartbeat));
    } else if (response.request) {
      this.start(response.request);
    } else if (response.renewed) {
      this.renewed(response.renewed);
    } else if (response.cancelled) {
      this.running.get(response.cancelled.token)?.controller.abort();
    } else if (response.problem) {
      console.error(`the service says: ${response.problem.message}`);
    } else if (response.drain) {
      void this.close();
    }
  }

  private start(request: Request): void {
    const held = { controller: new AbortController(), renewed: performance.now() };
    this.running.set(request.token, held);
    const call = this.call(request, held.controller.signal).finally(() => {
      this.running.delete(request.token);
      this.calls.delete(call);
    });
    this.calls.add(call);
  }

  private async call(request: Request, signal: AbortSignal): Promise<void> {
    let error = "";
    try {
      await this.reconcile(request, signal);
    } catch (caught) {
      error = String(caught);
      if (!signal.aborted) console.error(`${request.cluster}/${request.namespace}/${request.name}: ${error}`);
    }
    if (!signal.aborted) this.send({ done: Done.fromPartial({ token: request.token, error }) });
  }

  // Sends a heartbeat, and stops calls whose lease was not renewed for half of its length.
  private renew(): void {
    const now = performance.now();
    this.beats.set(++this.sequence, now);
    this.beats.delete(this.sequence - 10);
    for (const one of this.running.values()) {
      if (now - one.renewed > this.lease / 2) one.controller.abort();
    }
    this.send({ heartbeat: { sequence: this.sequence, tokens: [] } });
  }

  private renewed(message: Renewed): void {
    const sent = this.beats.get(message.sequence);
    for (const token of message.tokens) {
      const one = this.running.get(token);
      if (one !== undefined && sent !== undefined) one.renewed = Math.max(one.renewed, sent);
    }
  }
}

function milliseconds(duration: Duration | undefined): number {
  return (duration?.seconds ?? 0) * 1000 + (duration?.nanos ?? 0) / 1e6;
}
