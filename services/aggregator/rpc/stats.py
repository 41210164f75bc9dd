"""`StatsResponse`: the clock's state and sums as this replica has them; for the RPC, and as JSON for `reclock top`."""

from __future__ import annotations

from reclock.aggregator.v1 import aggregator_pb2 as pb
from services.aggregator.clock.clocks import Clocks
from services.aggregator.clock.membership import MemberState
from services.aggregator.clock.resource import ResourceClock


def stats(clocks: Clocks) -> pb.StatsResponse:
    """All resources by key."""
    # Not who it is to others (machine and pid): only which.
    answer = pb.StatsResponse(replica=clocks.each[0].context.me.rpartition(" ")[2])
    answer.time.GetCurrentTime()
    answer.resources.extend(_resource(one) for _, one in sorted(clocks.resources.items()))
    return answer


def _resource(clock: ResourceClock) -> pb.ResourceStats:
    aggregated, counts, tally = clock.aggregated, clock.counts(), clock.tally
    sequencer = clock.sequencer
    answer = pb.ResourceStats(
        resource=pb.ResourceRef(group=aggregated.group, resource=aggregated.resource),
        head=clock.head, floor=clock.floor, markers=counts.markers, clashes=counts.clashes,
        log_entries=counts.log_entries, window_revisions=counts.window_revisions, leads=bool(clock.term),
        watchers=tally.watchers, commits=tally.commits, committed_markers=tally.markers,
        waiting=sequencer.waiting if sequencer is not None else 0,
        feeds=[_feed(clock, state) for _, state in sorted(clock.members.items())],
    )  # fmt: skip
    answer.commit_time.FromNanoseconds(round(tally.seconds * 1e9))
    return answer


def _feed(clock: ResourceClock, state: MemberState) -> pb.FeedStats:
    cluster, sequencer = state.cluster, clock.sequencer
    tally = clock.tally.members[cluster]
    waiting, lag = (0, 0.0) if sequencer is None else sequencer.lag(cluster)
    answer = pb.FeedStats(
        cluster=cluster, state=state.state, position=state.position.read if state.position else 0,
        gap=cluster in clock.state.gaps, message=state.message, markers=clock.state.live.get(cluster, 0),
        lag_events=waiting, events=tally.events, commits=tally.commits, relists=tally.relists,
        deliveries=tally.deliveries, delivered_bytes=tally.bytes,
    )  # fmt: skip
    answer.lag.FromNanoseconds(round(lag * 1e9))
    answer.committed_lag.FromNanoseconds(round(tally.lag * 1e9))
    return answer
