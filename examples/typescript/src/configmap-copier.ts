// Copies ConfigMaps of the host that are labelled examples.reclock.dev/copy=true to every cluster, those that join later
// included. A copy goes when its original goes or loses the label.
import { APPLY, call, configMap, type KubeObject } from "./front.js";
import { Request, Scope, Source } from "./stubs/reclock/reconciler/v1/reconciler.js";
import { run } from "./worker.js";

const LABEL = "examples.reclock.dev/copy";
const COPY = "examples.reclock.dev/copy-of-host";
const MANAGER = "fieldManager=configmap-copier&force=true";
const CLUSTERS = "/apis/reclock.dev/v1alpha1/clusters";

interface List {
  items: KubeObject[];
}

const scope = Scope.SCOPE_HOST;
const sources = [
  Source.fromPartial({ name: "configmap", version: "v1", resource: "configmaps", scope, forObject: {} }),
  Source.fromPartial({
    name: "cluster", group: "reclock.dev", version: "v1alpha1", resource: "clusters", scope, forObject: {},
  }),
];

await run({ controller: "configmap-copier-ts", maxInFlight: 10, scope, sources }, async (request) => {
  if (request.source === "cluster") return fill(request.name);
  const original = await call<KubeObject>("", "GET", configMap(request.namespace, request.name));
  const clusters = await call<List>("", "GET", CLUSTERS);
  for (const cluster of clusters?.items ?? []) {
    if (original?.metadata.labels?.[LABEL] === "true") await copy(original, cluster.metadata.name);
    else await remove(request, cluster.metadata.name);
  }
});

// Gives a cluster all copies.
async function fill(cluster: string): Promise<void> {
  if ((await call("", "GET", `${CLUSTERS}/${cluster}`)) === undefined) return; // it has left
  const originals = await call<List>("", "GET", `/api/v1/configmaps?labelSelector=${encodeURIComponent(`${LABEL}=true`)}`);
  for (const original of originals?.items ?? []) await copy(original, cluster);
}

async function copy(original: KubeObject, cluster: string): Promise<void> {
  const { name, namespace = "" } = original.metadata;
  const made: KubeObject = {
    apiVersion: "v1", kind: "ConfigMap", metadata: { name, namespace, labels: { [COPY]: "true" } }, data: original.data ?? {},
  };
  const path = `${configMap(namespace, name)}?${MANAGER}`;
  if ((await call(cluster, "PATCH", path, made, APPLY)) === undefined) {
    const space = { apiVersion: "v1", kind: "Namespace", metadata: { name: namespace } };
    await call(cluster, "PATCH", `/api/v1/namespaces/${namespace}?${MANAGER}`, space, APPLY);
    if ((await call(cluster, "PATCH", path, made, APPLY)) === undefined) throw new Error(`${cluster} has no ${path}`);
  }
  console.log(`copied ${namespace}/${name} to ${cluster}`);
}

// Deletes the copy, if there is one: never a ConfigMap that is the cluster's own.
async function remove(request: Request, cluster: string): Promise<void> {
  const path = configMap(request.namespace, request.name);
  const found = await call<KubeObject>(cluster, "GET", path);
  if (found?.metadata.labels?.[COPY] !== "true") return;
  await call(cluster, "DELETE", path, { preconditions: { uid: found.metadata.uid } });
  console.log(`removed ${request.namespace}/${request.name} from ${cluster}`);
}
