"""The reconcile protocol: controllers of any language on the fair queue.

A worker's stream ends in a `Session` of the replica that it dialled. Each replica owns some clusters and runs, for each
controller, a `Controller`: queue, sources, leases. A session has a `Seat` at the controller of every replica; its own
replica's directly, the others' through a relay.
"""
