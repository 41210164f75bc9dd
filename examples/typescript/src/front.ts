// Any cluster of the fleet, through Reclock's front: no credentials of members needed.
import { readFileSync } from "node:fs";
import { Agent, request } from "node:https";

export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: { name: string; namespace?: string; uid?: string; labels?: Record<string, string> };
  data?: Record<string, string>;
}

const FRONT = process.env.RECLOCK_FRONT ?? "https://127.0.0.1:6443";
const ca = process.env.RECLOCK_CA_FILE;
const agent = new Agent({ keepAlive: true, maxSockets: 20, ca: ca ? readFileSync(ca) : undefined });

export const APPLY = "application/apply-patch+yaml";

// One call to the API of a cluster ("" is the host). Undefined for 404; other errors are thrown.
export function call<T>(
  cluster: string, method: string, path: string, body?: unknown, type = "application/json",
): Promise<T | undefined> {
  const url = FRONT + (cluster ? `/clusters/${cluster}` : "") + path;
  const headers: Record<string, string> = { accept: "application/json" };
  const token = process.env.RECLOCK_TOKEN_FILE;
  if (token) headers.authorization = `Bearer ${readFileSync(token, "utf8").trim()}`;
  const text = body === undefined ? undefined : JSON.stringify(body);
  if (text !== undefined) {
    headers["content-type"] = type;
    headers["content-length"] = String(Buffer.byteLength(text)); // Node adds none to a DELETE
  }
  return new Promise((resolve, reject) => {
    const sent = request(url, { method, headers, agent, timeout: 30_000 }, (answer) => {
      const chunks: Buffer[] = [];
      answer.on("data", (chunk: Buffer) => chunks.push(chunk));
      answer.on("error", reject);
      answer.on("end", () => {
        const got = Buffer.concat(chunks).toString();
        const code = answer.statusCode ?? 0;
        if (code === 404) resolve(undefined);
        else if (code >= 400) reject(new Error(`${method} ${path}: ${code} ${got.slice(0, 300)}`));
        else resolve(JSON.parse(got) as T);
      });
    });
    sent.on("timeout", () => sent.destroy(new Error(`${method} ${path}: no answer in time`)));
    sent.on("error", reject);
    sent.end(text);
  });
}

export function configMap(namespace: string, name: string): string {
  return `/api/v1/namespaces/${namespace}/configmaps/${name}`;
}
