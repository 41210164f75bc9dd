"""Which clusters there are, and what they may take."""

cdef class _Members(_State):
    @cython.final
    cdef u32 slot_of(self, str cluster) except? NONE:
        cdef u32 slot = self.find_slot(cluster)
        if slot == NONE:
            raise KeyError(f"cluster {cluster!r} is not engaged")
        return slot

    @cython.final
    cdef inline u32 find_slot(self, str cluster) except? NONE:
        """The cluster's index if it is engaged, else NONE."""
        cdef u32 *guess = &self.q.guesses[fq_guess(<PyObject *>cluster)]
        cdef PyObject *found
        cdef u32 slot = guess[0]
        if slot >= <u32>PyList_GET_SIZE(self.names) or PyList_GET_ITEM(<PyObject *>self.names, slot) != <PyObject *>cluster:
            found = PyDict_GetItemWithError(self.slots, cluster)
            if found == NULL:
                return NONE
            slot = guess[0] = <u32><object>found
        return slot if self.q.clusters[slot].engaged else NONE

    @cython.final
    cdef u32 new_slot(self, str cluster) except? NONE:
        cdef u32 i
        if self.spare:
            i = self.spare.pop()
            self.names[i] = cluster
        else:
            i = len(self.names)
            if i == self.q.clusters_cap:
                self.q.clusters = <Cluster *>grow_lines(self.q.clusters, &self.q.clusters_cap, i + 1, sizeof(Cluster))
            if i >= self.q.heap_cap:   # room for all at once: later changes of place cannot fail
                self.q.heap = <fq_ent *>grow(self.q.heap, &self.q.heap_cap, i + 1, sizeof(fq_ent))
            if i >= self.q.pos_cap:
                self.q.pos = <u32 *>grow(self.q.pos, &self.q.pos_cap, i + 1, sizeof(u32))
            self.names.append(cluster)
        memset(&self.q.clusters[i], 0, sizeof(Cluster))
        self.slots[cluster] = i
        return i

    @cython.final
    cdef drop_spread(self, u32 i):
        if self.q.clusters[i].spread != NULL:
            free(self.q.clusters[i].spread)
            self.q.clusters[i].spread = NULL
            self.q.spreads -= 1

    @cython.final
    cdef release_slot(self, u32 i):
        del self.slots[self.names[i]]
        self.names[i] = None
        self.spare.append(i)

    @cython.final
    cdef int checked_cap(self, cap) except -1:
        if cap is None:
            return max(1, self.workers // 4)
        if not 1 <= cap <= 1_000_000_000:
            raise ValueError(f"cap {cap!r}: must be between 1 and 1000000000, or None for a quarter of the workers")
        return cap

    def engage(self, str cluster not None, weight=1.0, cap=None) -> None:
        """Take keys of this cluster from now on. Engaging again only sets weight and cap."""
        cdef double w = checked_weight(weight)
        cdef u32 limit = self.checked_cap(cap)
        cdef u32 i, orphans = 0, records = 0
        cdef PyObject *found = PyDict_GetItem(self.slots, cluster)
        cdef Cluster *c
        if found != NULL:
            i = <u32><object>found
        else:
            i = self.new_slot(cluster)
        c = &self.q.clusters[i]
        if not c.engaged:   # a new generation; running keys of the last one keep their locks
            orphans, records = c.orphans, c.records
            memset(c, 0, sizeof(Cluster))
            c.orphans, c.records = orphans, records
            self.q.pos[i] = c.level = c.runs = c.scan_level = NONE
            c.charge_at = INFINITY
            self.q.serial += 1
            c.turn = self.q.serial   # never served: in the order of engaging
            c.engaged = True
        c.weight, c.unit, c.cap = w, 1 / w, limit
        self.changed(i)

    @cython.final
    cdef changed(self, u32 i):
        settle_place(&self.q, i, self.now())
        if self.waiting:
            self.wake()

    def disengage(self, str cluster not None) -> int:
        """Drop the cluster's waiting and delayed keys (returns how many) and its back-off; later adds are
        ignored until it is engaged again. Keys being processed stay locked until their `done`, which then
        neither queues again nor charges. O(its keys), plus the delayed and known ones of all clusters."""
        cdef PyObject *found = PyDict_GetItem(self.slots, cluster)
        cdef Core *q = &self.q
        cdef Cluster *c
        cdef u32 i, slot, kept = 0, dropped
        if found == NULL:
            return 0
        slot = <u32><object>found
        c = &q.clusters[slot]
        if not c.engaged:
            return 0
        c.engaged = False
        settle_place(q, slot, 0)
        dropped = c.ready + c.delayed
        while c.level != NONE:
            drop_rec(q, take(q, slot, c.level))
        q.ready -= c.ready
        c.ready = 0
        for i in range(q.runs_top):
            if q.runs[i].serial and q.runs[i].cluster == slot:
                q.runs[i].dirty = 0
                q.runs[i].due = -1
                q.recs[q.runs[i].rec].attempts = 0
                c.orphans += not q.runs[i].orphan
                q.runs[i].orphan = True
        c.runs = NONE
        self.drop_spread(slot)
        if c.delayed:
            for i in range(q.delays_len):
                if q.recs[q.delays[i].rec].cluster == slot:
                    q.recs[q.delays[i].rec].state = IDLE
                    drop_rec(q, q.delays[i].rec)
                else:
                    put_delay(q, kept, &q.delays[i])
                    kept += 1
            q.delays_len = kept
            for i in range(kept >> 1, 0, -1):
                delay_down(q, i - 1)
            c.delayed = 0
        if c.records > c.orphans:   # known for their back-off only
            for i in range(q.recs_top):
                if q.recs[i].state == IDLE and q.recs[i].cluster == slot:
                    drop_rec(q, i)
        if c.orphans == 0:
            self.release_slot(slot)
        shrink(q)
        self.settle_end()
        return dropped

    def set_weight(self, str cluster not None, weight) -> None:
        """From now on. ValueError outside of 1e-6..1e6, KeyError when not engaged."""
        cdef double w = checked_weight(weight)
        cdef u32 i = self.slot_of(cluster)
        self.q.clusters[i].weight, self.q.clusters[i].unit = w, 1 / w

    def set_cap(self, str cluster not None, cap) -> None:
        """At most so many keys of it are processed at once (None: a quarter of the workers), from now on."""
        cdef u32 limit = self.checked_cap(cap)
        cdef u32 i = self.slot_of(cluster)
        self.q.clusters[i].cap = limit
        self.changed(i)

    def set_rate(self, str cluster not None, rate, int burst=1) -> None:
        """Let `add_rate_limited` of this cluster through at most `rate` times a second (None: no limit) after
        `burst` at once; the larger of this and the key's own back-off counts."""
        cdef u32 i = self.slot_of(cluster)
        cdef double r = 0.0 if rate is None else positive("rate", rate)
        if burst < 1:
            raise ValueError(f"burst {burst}: must be at least 1")
        self.q.clusters[i].rate, self.q.clusters[i].burst = r, burst
        self.q.clusters[i].bucket_at = -INFINITY

    def pause(self, str cluster not None) -> None:
        """Hand out nothing more of it; adds are taken."""
        cdef u32 i = self.slot_of(cluster)
        self.q.clusters[i].paused = True
        self.changed(i)
        self.settle_end()

    def resume(self, str cluster not None) -> None:
        cdef u32 i = self.slot_of(cluster)
        self.q.clusters[i].paused = False
        self.changed(i)

    def spreads(self) -> list:
        """(cluster, waits, works) of each engaged cluster that was served: how many were how long, see BOUNDS."""
        cdef Spread *spread
        cdef u32 i
        cdef int n
        rows = []
        for cluster, slot in self.slots.items():
            i = slot
            spread = self.q.clusters[i].spread
            if spread != NULL:
                rows.append((cluster, [spread.waits[n] for n in range(BUCKETS)], [spread.works[n] for n in range(BUCKETS)]))
        return rows

    def stats(self) -> list:
        """One ClusterStats for each engaged cluster. `share` is of all worker-seconds so far."""
        cdef Cluster *c
        cdef Run *run
        cdef u32 i, r, due
        cdef double now = self.now(), total = 0, unfinished, longest
        rows = []
        for cluster, slot in self.slots.items():
            i = slot
            c = &self.q.clusters[i]
            if not c.engaged:
                continue
            unfinished = longest = 0.0
            due = 0
            r = c.runs
            while r != NONE:
                run = &self.q.runs[r]
                unfinished += now - run.start
                longest = max(longest, now - run.start)
                due += run.due >= 0 and not run.dirty
                r = run.next
            total += c.work_seconds + unfinished
            rows.append((cluster, c.weight, c.cap, bool(c.paused), c.ready, c.delayed + due, c.in_flight, c.adds,
                         c.served, c.retries, c.queue_seconds, c.work_seconds, unfinished, longest))
        return [ClusterStats(*row[:12], (row[11] + row[12]) / total if total > 0 else 0.0, *row[12:])
                for row in rows]
