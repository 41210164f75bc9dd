"""Which pods of the whole fleet run an image: an index over all clusters, kept by the service, asked by a controller.

A ConfigMap of the host that is labelled `examples.reclock.dev/image-report=true` names an image in `data.image`; it gets
an annotation with the pods that run it, by cluster. The worker keeps no pod in memory.

    reclock dev examples/python/image_report.py
"""

from __future__ import annotations

from collections import Counter

from reclock import For, Index, On, Request, Requeue, Result, Seen, Target, Watch, controller, run

LABEL = "examples.reclock.dev/image-report"
PODS = "examples.reclock.dev/pods"
SECONDS = 10.0


def no_requests(seen: Seen) -> list[Target]:
    """Pods are watched for the index alone: reports look at it now and then."""
    return []


@controller(
    for_=For("v1/configmaps", labels=f"{LABEL}=true", on=On.HOST, name="report"),
    watches=[Watch("v1/pods", by=no_requests, on=On.MEMBERS, name="pod")],
    indexes=[Index(name="image", source="pod", path="spec.containers[*].image")],
    on=On.ALL,
)
async def image_report(request: Request) -> Result:
    """A request is a report."""
    report = await request.get()
    if report is None:
        return None
    image = (report.get("data") or {}).get("image", "")
    found = await request.indexed("image", image)
    counts = Counter(one.cluster for one in found.objects)
    text = " ".join(f"{cluster}={number}" for cluster, number in sorted(counts.items())) or "none"
    if found.missing_clusters:
        text += f" (not asked: {' '.join(found.missing_clusters)})"
    if (report["metadata"].get("annotations") or {}).get(PODS) != text:
        patch = {"metadata": {"annotations": {PODS: text}}}
        await request.cluster.patch("v1/configmaps", request.name, patch, request.namespace)
        print(f"{image}: {text}", flush=True)
    return Requeue(after=SECONDS)


if __name__ == "__main__":
    run(image_report)
