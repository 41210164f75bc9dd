"""add, take, done and back-off."""

cdef enum:
    MANY = 512   # eligible clusters, of which the next one is not in the cache

cdef class _Verbs(_Members):
    @cython.final
    cdef int merge(self, u32 i, u32 ns, int prio, double due, double now) except -1:
        """An add for a known key of that namespace: the higher priority and the earlier time win."""
        cdef Core *q = &self.q
        cdef Rec *r = &q.recs[i]
        cdef Cluster *c = &q.clusters[r.cluster]
        cdef Run *run
        cdef bint at_once = due <= now
        if r.state == READY:
            if prio > r.level:
                move(q, i, r.cluster, level_of(q, r.cluster, r.level), prio)
                if q.priority_first:
                    settle_place(q, r.cluster, now)
            r = &q.recs[i]
            r.prio = max(r.prio, prio)
            return 0
        if r.state == PROCESSING:
            run = &q.runs[r.prev]
            if run.dirty or run.due >= 0:
                run.prio = max(run.prio, prio)
                if not run.dirty:
                    run.due = now if at_once else min(run.due, due)
                    run.dirty = at_once
            else:
                c.adds += 1
                run.prio = prio
                run.due = now if at_once else due
                run.dirty = at_once
            return 0
        if r.state == DELAYED:
            r.prio = max(r.prio, prio)
            if at_once:
                undelay(q, i)
                self.enqueue(i, ns, now, now)
            elif due < q.delays[r.prev].due:
                q.delays[r.prev].due = due
                delay_up(q, r.prev)
                self.rearm()
            return 0
        r.prio = prio
        if at_once:
            self.enqueue(i, ns, now, now)
        else:
            delay(q, i, due)
            self.rearm()
        c.adds += 1
        return 0

    @cython.final
    cdef bint put(self, str cluster, str key, int priority, double after) except -1:
        cdef Core *q = &self.q
        cdef const Level *l
        cdef int prio = checked_priority(priority)
        cdef double now
        cdef u32 slot, hash, ns, i
        fq_prefetch(<const char *><PyObject *>key + 64)   # where its namespace stands
        slot = self.find_slot(cluster)
        if slot == NONE or self.shutting:
            return False
        hash = key_hash(<PyObject *>key, slot)
        fq_prefetch(&q.keys.slots[hash & q.keys.mask])
        ns = fq_namespace(<PyObject *>key)
        if q.clusters[slot].level != NONE:   # it is likely to wait there
            l = &q.levels[q.clusters[slot].level]
            fq_prefetch(&l.seen[(ns >> 1) & l.seen_mask])
        if q.heap_len:   # its record is here by now; get will touch its string
            i = q.clusters[coming(q)].hint
            if i < q.recs_top:
                fq_prefetch(q.recs[i].key)
        now = self.now()
        if q.delays_len:
            self.release_due(now)
        i = find_key(q, slot, hash, <PyObject *>key)
        if i != NONE or after > 0:
            if i == NONE:
                i = new_rec(q, slot, hash, <PyObject *>key, prio)
            self.merge(i, ns, prio, now + after if after > 0 else now, now)
            return True
        self.enqueue(new_rec(q, slot, hash, <PyObject *>key, prio), ns, now, now)
        q.clusters[slot].adds += 1
        return True

    def add(self, str cluster not None, str key not None, int priority=0) -> bool:
        """Queue "namespace/name" or "name". A key that waits is not queued twice: it takes the higher
        priority. One that is being processed is queued again after its `done`. False, and nothing
        happens, when the cluster is not engaged or the queue is shut down."""
        return self.put(cluster, key, priority, 0)

    def add_after(self, str cluster not None, str key not None, delay, int priority=0) -> bool:
        """`add` in `delay` seconds; an earlier time that is known already wins."""
        cdef double after = delay
        if not after < INFINITY:
            raise ValueError(f"delay {delay!r}: must be finite")
        return self.put(cluster, key, priority, after)

    def add_rate_limited(self, str cluster not None, str key not None, int priority=0) -> float:
        """`add_after` the key's back-off: base_delay, doubled by each such add since `forget`, at most
        max_delay; the cluster's token bucket may make it longer. Returns the delay, -1.0 when not taken."""
        cdef int prio = checked_priority(priority)
        cdef double now, after, start
        cdef Cluster *c
        cdef Rec *r
        cdef u32 slot = self.find_slot(cluster), hash, i
        if slot == NONE or self.shutting:
            return -1.0
        c = &self.q.clusters[slot]
        now = self.now()
        if self.q.delays_len:
            self.release_due(now)
        hash = key_hash(<PyObject *>key, slot)
        i = find_key(&self.q, slot, hash, <PyObject *>key)
        if i == NONE:
            i = new_rec(&self.q, slot, hash, <PyObject *>key, prio)
        r = &self.q.recs[i]
        after = min(ldexp(self.base_delay, min(<int>r.attempts, 1000)), self.max_delay)
        r.attempts += r.attempts < 65535
        c.retries += 1
        if c.rate > 0:
            start = max(c.bucket_at, now - c.burst / c.rate)
            c.bucket_at = start + 1 / c.rate
            after = max(after, c.bucket_at - now)
        self.merge(i, fq_namespace(<PyObject *>key), prio, now + after, now)
        return after

    def forget(self, str cluster not None, str key not None) -> None:
        """The key's back-off starts afresh; whether it waits does not change."""
        cdef u32 i = self.look_up(cluster, key)
        if i != NONE:
            self.q.recs[i].attempts = 0
            if self.q.recs[i].state == IDLE:
                drop_rec(&self.q, i)
                shrink(&self.q)

    def num_requeues(self, str cluster not None, str key not None) -> int:
        """Rate-limited adds of the key since `forget`."""
        cdef u32 i = self.look_up(cluster, key)
        return 0 if i == NONE else self.q.recs[i].attempts

    @cython.final
    cdef u32 look_up(self, str cluster, str key) except? NONE:
        cdef PyObject *found = PyDict_GetItem(self.slots, cluster)
        if found == NULL:
            return NONE
        return find_key(&self.q, <u32><object>found, key_hash(<PyObject *>key, <u32><object>found), <PyObject *>key)

    @cython.final
    cdef Item take_next(self):
        cdef Core *q = &self.q
        cdef double now = self.now(), waited
        cdef Item item
        cdef Cluster *c
        cdef Rec *r
        cdef u32 slot, i, n
        if q.delays_len:
            self.release_due(now)
        slot = next_cluster(q, now)
        if slot == NONE:
            return None
        c = &q.clusters[slot]
        if q.levels[c.level].next != NONE:
            raise_old(q, slot, now)
        if c.spread == NULL:
            self.make_spread(c)
        item = Item.__new__(Item)
        n = new_run(q, NONE, slot, now)
        i = take(q, slot, c.level)
        r = &q.recs[i]
        fq_prefetch(&q.keys.slots[key_hash(r.key, slot) & q.keys.mask])   # done will look there
        q.runs[n].rec = i
        r.state = PROCESSING
        r.prev = n
        waited = max(now - r.t, 0.0)
        item.cluster_ = <str>self.names[slot]
        item.key_ = <str><object>r.key
        item.priority = r.prio
        item.attempts = r.attempts
        item.waited = waited
        item.queue = self.number
        item.serial = q.runs[n].serial
        item.run = n
        c.ready -= 1
        q.ready -= 1
        q.processing += 1
        c.in_flight += 1
        c.served += 1
        c.queue_seconds += waited
        c.spread.waits[fq_bucket(waited)] += 1
        q.vtime = max(q.vtime, c.tag)
        c.tag += q.runs[n].unit
        c.turn = q.serial
        if c.ready and c.in_flight < c.cap:
            q.heap[0] = entry(q, slot)
            q.loose = True
        else:
            leave(q, 0)
        if q.heap_len > MANY:
            fq_prefetch(&q.clusters[coming(q)])
        elif q.heap_len:
            prefetch_rec(&q.recs[q.clusters[coming(q)].hint])
        return item

    @cython.final
    cdef inline void prefetch_cluster(self, u32 slot) noexcept:
        """What get will need of a cluster that nobody has looked at for long."""
        cdef const Cluster *c = &self.q.clusters[slot]
        prefetch_rec(&self.q.recs[c.hint])
        fq_prefetch(&self.q.levels[c.level])
        fq_prefetch(&c.spread)
        fq_prefetch(PyList_GET_ITEM(<PyObject *>self.names, slot))

    @cython.final
    cdef int make_spread(self, Cluster *c) except -1:
        c.spread = <Spread *>calloc(1, sizeof(Spread))
        if c.spread == NULL:
            raise MemoryError()
        self.q.spreads += 1
        return 0

    def has_ready(self) -> bool:
        """Whether `get_nowait` has something now."""
        return self.has_next()

    @cython.final
    cdef bint has_next(self) except -1:
        cdef double now = self.now()
        if self.q.delays_len:
            self.release_due(now)
        return next_cluster(&self.q, now) != NONE

    def get_nowait(self):
        """The next item, None when there is none now."""
        return self.take_next()

    def done(self, Item item not None) -> None:
        """The item was processed. Once per item; a second time does nothing. ValueError for an item of
        another queue."""
        cdef Core *q = &self.q
        cdef Run *run
        cdef Rec *r
        cdef Cluster *c
        cdef u32 i, slot
        cdef int prio
        cdef bint dirty, orphan
        cdef double now, due, elapsed
        if item.queue != self.number:
            raise ValueError(f"{item!r} is of another queue")
        if item.run >= q.runs_top or q.runs[item.run].serial != item.serial:
            return
        run = &q.runs[item.run]
        now = self.now()
        i, slot, prio, dirty, orphan, due = run.rec, run.cluster, run.prio, run.dirty, run.orphan, run.due
        r = &q.recs[i]
        c = &q.clusters[slot]
        if orphan:
            c.orphans -= 1
        else:
            elapsed = max(now - run.start, 0.0)
            c.work_seconds += elapsed
            c.spread.works[fq_bucket(elapsed)] += 1
            c.in_flight -= 1
            c.tag = max(c.tag + (elapsed * q.per_work - 1 - run.charged) * run.unit, 0.0)
        drop_run(q, item.run)
        q.processing -= 1
        r.state = IDLE
        if dirty or (due >= 0 and not self.shutting):
            r.prio = <int16_t>prio
            if dirty or due <= now:
                self.enqueue(i, fq_namespace(r.key), due, now)
            else:
                delay(q, i, due)
                self.rearm()
        elif r.attempts == 0 or not c.engaged:
            drop_rec(q, i)
        if not orphan:
            settle_place(q, slot, now)
            if q.heap_len > MANY:
                self.prefetch_cluster(coming(q))
        elif c.orphans == 0 and not c.engaged:
            self.release_slot(slot)
        if self.waiting and q.heap_len:
            self.wake()
        if self.shutting:
            self.settle_end()
        if bulky(q):
            shrink(q)
