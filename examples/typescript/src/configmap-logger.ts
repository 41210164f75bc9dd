// Prints a line for every ConfigMap of every cluster, now and after each change: `<cluster> <namespace>/<name> <keys>`.
import { call, configMap, type KubeObject } from "./front.js";
import { Source } from "./stubs/reclock/reconciler/v1/reconciler.js";
import { run } from "./worker.js";

const sources = [Source.fromPartial({ version: "v1", resource: "configmaps", forObject: {} })];

await run({ controller: "configmap-logger-ts", maxInFlight: 10, sources }, async (request) => {
  const found = await call<KubeObject>(request.cluster, "GET", configMap(request.namespace, request.name));
  const keys = found === undefined ? "gone" : Object.keys(found.data ?? {}).sort().join(",") || "-";
  console.log(`${request.cluster} ${request.namespace}/${request.name} ${keys}`);
});
