"""The queue's state as an object: its classes are one, cut by purpose; only FairQueue is made."""

cdef class _State:
    """Memory, clock, waiters; what makes a key ready and wakes who waits for it."""
    cdef Core q
    cdef object clock, waiters, timer, drains
    cdef bint own_clock, shutting
    cdef public double base_delay, max_delay
    cdef public int workers
    cdef dict slots          # cluster -> index; engaged ones, and gone ones with running calls
    cdef list names, spare   # index -> cluster; free indices
    cdef Py_ssize_t waiting
    cdef double armed
    cdef u64 number

    def __cinit__(self, *args, **kwargs):
        memset(&self.q, 0, sizeof(Core))
        self.q.recs_free = self.q.levels_free = self.q.runs_free = NONE

    def __init__(self, *, clock=time.monotonic, expected_work=0.1, base_delay=0.005, max_delay=1000.0,
                 max_wait=60.0, int workers=16, bint priority_first=False):
        global queues
        queues += 1
        self.number = queues
        self.clock = clock
        self.own_clock = clock is time.monotonic and fq_has_monotonic()
        self.q.work = positive("expected_work", expected_work)
        self.q.per_work = 1 / self.q.work
        self.q.max_wait = positive("max_wait", max_wait)
        self.q.priority_first = priority_first
        self.base_delay = positive("base_delay", base_delay)
        self.max_delay = positive("max_delay", max_delay)
        if workers < 1:
            raise ValueError(f"workers {workers}: must be at least 1")
        self.workers = workers
        self.slots, self.names, self.spare = {}, [], []
        self.waiters = deque()
        self.drains = []
        self.armed = INFINITY

    def __dealloc__(self):
        cdef u32 i
        for i in range(self.q.recs_top):
            if self.q.recs[i].state != FREE:
                Py_DECREF(<object>self.q.recs[i].key)
        for i in range(self.q.levels_cap):
            free(self.q.levels[i].heads)
            free(self.q.levels[i].seen)
        for i in range(self.q.clusters_cap):
            free(self.q.clusters[i].spread)
        free(self.q.recs)
        free(self.q.levels)
        free(self.q.runs)
        free(self.q.clusters)
        free(self.q.heap)
        free(self.q.pos)
        free(self.q.delays)
        free(self.q.keys.slots)

    def __len__(self) -> int:
        """Keys that wait now; neither those being processed nor delayed ones."""
        return self.q.ready

    def __sizeof__(self) -> int:
        """Bytes of the queue's own memory; keys' strings not counted."""
        cdef Core *q = &self.q
        return (sizeof(Core) + q.recs_cap * sizeof(Rec) + q.levels_cap * sizeof(Level) + q.level_bytes
                + q.runs_cap * sizeof(Run) + q.clusters_cap * sizeof(Cluster) + q.spreads * sizeof(Spread)
                + q.heap_cap * sizeof(fq_ent) + q.pos_cap * sizeof(u32) + q.delays_cap * sizeof(Delay)
                + sizeof(u64) * (<size_t>q.keys.mask + 1))

    @cython.final
    cdef inline double now(self) except? -1:
        return fq_monotonic() if self.own_clock else self.clock()

    @cython.final
    cdef inline int enqueue(self, u32 i, u32 ns, double since, double now) except -1:
        """Make an IDLE record of that namespace READY; it waits since `since`."""
        cdef Core *q = &self.q
        cdef Rec *r = &q.recs[i]
        cdef Cluster *c = &q.clusters[r.cluster]
        cdef u32 level = c.level
        if level == NONE or q.levels[level].prio != r.prio:
            level = level_of(q, r.cluster, r.prio)
        r.t = since
        try:
            append(q, i, level, ns)
        except MemoryError:
            if q.levels[level].count == 0:
                drop_level(q, r.cluster, level)
            raise
        if c.ready == 0:
            c.hint = i
        c.ready += 1
        q.ready += 1
        if q.pos[r.cluster] == NONE or q.priority_first:
            settle_place(q, r.cluster, now)
        if self.waiting and q.heap_len:
            self.wake()
        return 0

    @cython.final
    cdef int release_due(self, double now) except -1:
        """Keys whose time has come become ready, in the order of their times."""
        cdef Core *q = &self.q
        cdef Delay d
        while q.delays_len and q.delays[0].due <= now:
            d = q.delays[0]
            undelay(q, d.rec)
            self.enqueue(d.rec, fq_namespace(q.recs[d.rec].key), d.due, now)
        return 0

    @cython.final
    cdef wake(self):
        while self.waiters:
            future = self.waiters.popleft()
            self.waiting -= 1
            if not future.done():
                future.set_result(None)
                return

    @cython.final
    cdef bint ended(self) except -1:
        """Shut down, and nothing is left that could be handed out (paused clusters' keys cannot)."""
        cdef u32 i
        if not self.shutting:
            return False
        if self.q.ready:
            for i in range(<u32>len(self.names)):
                if self.names[i] is not None and self.q.clusters[i].ready and not self.q.clusters[i].paused:
                    return False
        return True

    @cython.final
    cdef settle_end(self):
        """Tell those who wait for the end."""
        if not self.shutting:
            return
        if self.waiting and self.ended():
            while self.waiters:
                self.wake()
        if self.q.processing == 0:
            for future in self.drains:
                if not future.done():
                    future.set_result(None)
            self.drains.clear()

    @cython.final
    cdef rearm(self):
        """Have a timer for the earliest delayed key while somebody waits."""
        cdef double due
        if not self.waiting or not self.q.delays_len:
            return
        due = self.q.delays[0].due
        if self.timer is not None:
            if self.armed <= due:
                return
            self.timer.cancel()
        self.armed = due
        self.timer = self.waiters[0].get_loop().call_later(max(due - self.now(), 0.0), self._fire)

    def _fire(self):
        self.timer = None
        self.release_due(self.now())
        self.rearm()
