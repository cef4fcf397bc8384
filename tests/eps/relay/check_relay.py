"""check_relay.py - a small world around relay.py, for search.py: workers, an optimizer thread, readers and faults.

The world keeps the numbers that the relay does not: moments, sums and weights of every unit, as a record of what was
decayed, folded (which visit and part) and updated in which order. So "as if nothing had happened" is an equality.
What it checks at every move:
  versions are t or t+1 (t-1 or t in the tail); a fold reads the slice it names, written in the current attempt;
  no name is folded twice; an update finds exactly the fault-free record; no pull is ever answered with a version other
  than the one it names, which stays until the worker has gone on, and none is left without an answer; accumulators and
  slots are within bounds; what a reader captures is the fault-free record of its version; updates that are not eager wait for
  the whole step; torn is said only when the step was begun and can neither be finished nor redone; a step is skipped only
  if numbers were not finite; live workers are not refused, nor their pulls void, but for a step that is over;
  no worker is given more unfinished parts than it has room for, and none keeps a part waiting that it has room for;
  of an audited part nothing is folded but what equals the auditor's digest, or what no auditor will judge; only who has sent
  something wrong is named for it, and a job ends undecided only where no third worker could decide;
  a worker redoes what it has sent only if that was damaged, and then whatever it has of the step;
  a part leaves its worker only when the worker is lost, or when the part is damaged after others took its place; a step
  opens with owners within the rooms, and not beyond them;
and at the end of every path: all steps done, state equal to the fault-free one, slots free, nothing waiting; or nobody
is attached; or the rooms add up to less than the parts: then a worker is given room for all, and finishes what is left.
"""
import relay as spec
from explore import Record, check, frozen_in, intern, visits_in
from relay import ANY, Relay, RESERVED
from setting import new_worker, Pass, program
from shared import copy_relay, key_relay, Shared


class World(Record):
    def __init__(self, setting, relay_class=Relay):
        self.setting = setting
        c = setting.config
        self.relay = relay_class(c)
        self.programs = {}          # of passes
        self.shared = None          # of worlds that were copied
        self.workers = [new_worker(setting, w < setting.workers) for w in range(setting.workers + setting.late)]
        self.rooms = dict(enumerate(setting.rooms or (ANY,) * setting.workers))     # of the attached
        self.leaving = frozenset()
        self.changes = setting.changes
        units = sorted(set(visits_in(setting, 0)))
        self.base = {(u, s): 0 for u in units for s in range(c.slices)}     # record of finished steps, interned
        self.moments = {us: () for us in self.base}                         # folded straight into m and v, this step
        self.sums = {us: () for us in self.base}                            # summed
        self.weights = {u: (0, 0) for u in units}                           # two buffers, the record they hold
        self.current = {u: 0 for u in units}
        self.intern_numbers()
        self.queue = ()             # jobs of the thread, oldest first; [0] of `running` is under way
        self.running = None
        self.skipped = ()
        self.done = 0
        self.stale = ()
        self.faults = setting.n_faults
        self.saves = setting.saves
        self.late = setting.late
        self.asleep = None          # a stopped worker that will attach again
        self.captured = ()          # (unit, version)
        self.saved = 0
        self.last = None            # last message delivered, for a duplicate
        self.pulls = ()             # (worker, t, unit): not answered
        self.torn = False
        self.bad = ()               # (step, part) that were not finite, once for each time
        self.lied, self.liars = frozenset(), frozenset()    # who was wrong in this step; who is always
        self.wrong = frozenset()    # (worker, tag): contributions that are wrong, and their digests
        self.digests = ()           # (name, digest) of the auditor, delivered
        self.audit = None           # (part, auditor, whether it goes on)
        self.referee, self.theirs = None, ()        # a third worker, and its digests
        self.anew = None            # who begins its share anew, room or not, while the relay is fed
        self.before = {}            # the load of each worker when the relay was fed
        self.damaged = None         # (whose slice is damaged, its part if that counted as finished), as the relay hears of it
        self.silent = frozenset()   # dead, and the relay will hear of it
        self.trace = None           # list, on random walks
        for w in range(setting.workers):
            self.feed('attached', w)

    def start_trace(self):
        self.trace = [spec.config_to_text(self.setting.config)]
        self.relay = self.relay.__class__(self.setting.config)
        for w in range(self.setting.workers):
            self.feed('attached', w)

    def copy(self):
        """Everything in it is replaced where it changes, but for the list of workers."""
        if not self.shared:
            self.shared = Shared(self.check_relay)
            self.relay = self.shared.keep(self.relay)
        n = World.__new__(World)
        n.__dict__.update(self.__dict__)
        n.workers = list(self.workers)
        return n

    def key(self):
        remembers = self.faults and ('dup' in self.setting.faults or 'again' in self.setting.faults)
        return hash((self.relay if self.shared else key_relay(self.relay), tuple(self.workers), self.numbers, self.queue,
                     self.running, self.skipped, self.done, self.bad, self.stale, self.faults, self.saves, self.late,
                     self.asleep, self.captured, self.saved, self.last if remembers else None,
                     tuple(sorted(self.rooms.items())), self.leaving, self.changes, self.lied, self.liars, self.wrong,
                     self.digests, self.audit, self.silent, self.referee, self.theirs))

    def replace(self, i, **fields):
        self.workers[i] = self.workers[i]._replace(**fields)

    def program(self, q):
        if (q.t, q.share) not in self.programs:
            self.programs[q.t, q.share] = program(self.setting, q.t, tuple(p for p, _ in q.share))
        return self.programs[q.t, q.share]

    # ---- what should be ---------------------------------------------------------------------------------------

    def load(self, w):
        return sum(o == w and self.relay.is_unfinished(p) for p, o in enumerate(self.relay.owner))

    def is_short(self):
        """Some of what is left waits for room."""
        return self.done < self.setting.steps and sum(self.rooms.values()) < self.setting.config.parts

    def has_sent_all(self, w):
        """Then the relay hears of a loss once that is folded."""
        r = self.relay
        known = r.folded.union(r.flying(), (cell[1] for cell in r.inbox[w] if cell))
        return self.load(w) and all(n in known for n in r.names if r.owner[n[1]] == w)

    def may_retire(self, w):
        """It has nothing of the step; or another can redo what it has, and the step waits for a worker anyway."""
        r = self.relay
        mine = [p for p, o in enumerate(r.owner) if o == w and r.is_unfinished(p)]
        return not mine or (self.load(None) and all(map(r.can_redo, mine)))

    # ---- feeding the relay and doing what it says --------------------------------------------------------------

    def feed(self, *event, stale=False):
        if event[0] == 'attached' and self.rooms[event[1]] != ANY:
            event += (self.rooms[event[1]],)
        if event[0] == 'pull':
            self.pulls += (event[1:],)
        self.note_audit(event, stale)
        r = self.relay
        t, owner, self.anew, self.before = r.t, list(r.owner), None, {w: self.load(w) for w in self.rooms}
        if self.shared:
            self.relay, actions = self.shared.feed(r, event)
            r = self.relay
        else:
            actions = r.feed(event)
            self.check_relay(r)
        if self.trace is not None:
            self.trace += [spec.to_text(event)] + ['  ' + spec.to_text(a) for a in actions]
        for action in actions:
            self.obey(action, event, stale)
        self.start_job()
        check(len(self.pulls) == len(r.waiting) and sorted(self.pulls) == sorted(r.waiting),
              'a pull is left without an answer')
        if t == r.t:
            for p, (old, new) in enumerate(zip(owner, r.owner)):
                check(old in (None, new) or old not in r.inbox or self.is_displaced(old, p),
                      'part %d is taken from worker %s' % (p, old))
        self.invariants()

    def is_displaced(self, w, p):
        """Its last slice is damaged, and the worker had as much to do as it has room for."""
        return self.damaged == (w, p) and self.before[w] >= max(1, self.rooms[w])

    def note_audit(self, event, stale):
        """What the world knows of an audit before the relay does."""
        if event[0] == 'open':
            self.lied, self.wrong, self.digests = frozenset(), frozenset(), ()
            self.referee, self.theirs = None, ()
            self.audit = event[6][0] + (True,) if event[6:] else None
        elif not self.audit:
            return
        elif event[0] == 'unaudit':
            self.end_audit(event[1])
        elif event[0] == 'digest' and not stale and event[2] == self.relay.t:
            new = ((event[3:6], event[6]),)
            if event[1] == self.audit[1] and self.audit[2]:
                self.digests += new if event[3:6] not in dict(self.digests) else ()
            if event[1] == self.referee:
                self.theirs += new if event[3:6] not in dict(self.theirs) else ()
            self.lied |= {event[1]} if event[6] else set()
        elif event[0] == 'contribution' and event[8:] and event[8]:
            self.lied |= {event[1]}

    def end_audit(self, w):
        if self.audit and self.audit[1] == w:
            self.audit = self.audit[:2] + (False,)
        if self.referee == w:
            self.referee = None

    def check_fold(self, name, w, k):
        if not self.audit or name[1] != self.audit[0]:
            return
        digest = self.digest_of(w, self.workers[w].slots[k])
        known = dict(self.digests)
        if name in known:
            check(known[name] == digest, 'a slice is folded that the auditor has computed otherwise')
        else:
            check(not self.audit[2], 'a slice is folded before the auditor has judged it')

    def check_differs(self):
        check(self.lied, 'something differs, but nobody was wrong')

    def check_undecided(self, first, auditor):
        c = self.setting.config
        check(self.lied, 'undecided, but nobody was wrong')
        lies, redone = set(self.setting.faults) <= {'lie', 'liar'}, c.replay or c.commit != 'eager'
        check(len(self.lied) > 1 or first == auditor or not lies or not redone or not set(self.rooms) - {first, auditor},
              'undecided, but a third worker could decide')
        check(self.setting.faults != ('lie',) or self.setting.n_faults > 1 or not redone, 'undecided, but one was wrong once')

    def digest_of(self, w, tag):
        return dict(self.wrong).get((w, tag), 0)

    def obey(self, action, event, stale):
        what, x = action[0], action[1:]
        if what == 'audit':
            if event[0] != 'open':
                self.check_differs()
                check(x[0] not in (self.audit[1], self.relay.owner[self.audit[0]])
                      or not set(self.rooms) - {self.audit[1], self.relay.owner[self.audit[0]]} - self.silent - self.leaving
                      or not self.setting.config.replay or self.setting.rooms, 'there is a third worker')
                self.referee, self.theirs = x[0], ()
                self.begin_anew(x[0])
            w = self.workers[x[0]]
            self.replace(x[0], passes=w.passes + (Pass(x[1], ((x[2], 0),), 0, False, None, True),))
        elif what == 'share':
            w, t, share = self.workers[x[0]], x[1], x[2]
            check(w.attached, 'share for a worker that is not there')
            passes = tuple(q for q in w.passes if q.t == t)
            if self.setting.config.groups:
                share, passes = self.missing(x[0], passes, share), tuple(q for q in passes if q.audit)
            passes += Pass(t, share, 0, False, None),
            self.replace(x[0], passes=passes, grant=w.grant if w.grant and w.grant[0] == t else None)
            n, room = self.load(x[0]), self.rooms[x[0]]
            most = max(1, room, self.before.get(x[0], 0)) if x[0] == self.anew else room
            check(n <= most, 'worker %d has %d parts, and room for %d' % (x[0], n, most))
        elif what == 'answer':
            self.answer(*x)
        elif what == 'void':
            self.void(*x)
        elif what == 'refuse':
            if x[1] != 'not finite':
                self.refused(event, x, stale)
            elif x[0] not in self.relay.inbox:      # else the step is given up, and nobody is lost
                self.detach(x[0])
        elif what == 'free':
            w, name = self.workers[x[0]], x[2:]
            if w.slots[x[1]] and w.slots[x[1]][1] == name:
                self.replace(x[0], slots=w.slots[:x[1]] + (None,) + w.slots[x[1] + 1:])
        elif what == 'grant':
            self.replace(x[0], grant=(self.relay.t, x[1:]))
        elif what == 'again':
            self.check_differs()
            check(x[0] == self.relay.owner[self.audit[0]], 'again, but the part is another worker\'s')
            self.begin_anew(x[0])
        elif what == 'redo':
            check(event[0] == 'folded' and event[3] == 'damaged', 'redone, but nothing was damaged')
            check(self.damaged and x[0] == self.damaged[0], 'a worker redoes what another has sent')
            self.begin_anew(x[0], audits=True)
        elif what == 'liar':
            check(x[0] in self.lied, 'an honest worker is named')
            if self.audit[1] == x[0]:
                third = self.referee is not None and self.referee != x[0]
                self.audit = (self.audit[0], self.referee if third else x[0], third)
                self.digests, self.referee, self.theirs = self.theirs if third else (), None, ()
            if x[0] in self.rooms:
                self.detach(x[0])
        elif what == 'undecided':
            self.check_undecided(*x)
            self.torn = True
        elif what == 'fold':
            self.check_fold(x[1:4], *x[4:6])
            self.queue += (x + (None,),)
        elif what == 'update':
            u = x[0]
            if self.setting.config.commit != 'eager':
                frozen = frozen_in(self.setting, self.relay.t)
                trained = [y for y in self.sums if y[0] not in frozen]
                check(all(set(self.sums[y] + self.moments[y]) - {'decay'} == set(self.full(y[0], self.relay.t))
                          for y in trained), 'an update before the step is folded')
            self.queue += ((u, 'update'),)
        elif what == 'skipped':
            check(self.setting.config.commit == 'fenced' or not any(self.moments.values()) and not any(self.sums.values()),
                  'skipped after a fold')
            check(self.bad, 'skipped, but all was finite')
            self.skipped += (x[0],)
        elif what == 'done':
            check(x[0] == self.done, 'done out of order')
            self.done += 1
        elif what == 'capture':
            self.captured = tuple(sorted(self.captured + ((x[1], x[2]),)))
        elif what == 'saved':
            self.saved = 1
        elif what == 'abandon':
            self.captured = ()
            self.saved = -1
        elif what == 'torn':
            c = self.setting.config
            begun = any(self.moments.values()) or any(self.sums.values()) or self.queue or self.running \
                or any(v > x[0] for v in self.relay.version.values())
            check(c.commit != 'fenced' and begun, 'torn, but nothing of the step was folded')
            check(not c.replay and c.commit == 'eager' or len(self.bad) > len(set(self.bad)), 'torn, but it could be redone')
            self.torn = True
        else:
            check(what == 'covered', 'unknown action ' + what)

    def begin_anew(self, i, audits=False):
        """What it has of its share, and was about to say, is void; unless `audits`, its audit too."""
        r, w = self.relay, self.workers[i]
        self.anew = i
        passes = tuple(q for q in w.passes if q.t != r.t or q.audit and audits)
        asked = {('pull', q.t, visits_in(self.setting, q.t)[self.program(q)[q.pc][1]]) for q in passes if q.waiting}
        self.replace(i, passes=passes,
                     queue=tuple(m for m in w.queue if m[1] != r.t or m[0] == 'digest' and audits or m in asked),
                     slots=tuple(tag if tag and tag in r.inbox[i] else None for tag in w.slots), grant=None)

    def missing(self, w, passes, share):
        """Parts of these passes, and of the share, of which the relay has not heard all."""
        r, parts = self.relay, sum((q.share for q in passes if not q.audit), share)
        known = r.folded.union(r.flying(), (cell[1] for cell in r.inbox[w] if cell))
        return tuple(sorted((p, a) for p, a in parts if any(n[1] == p and n not in known for n in r.names)))

    def is_over(self, t):
        return self.torn or self.relay.torn or t < self.relay.t or (t == self.relay.t and self.relay.covered)

    def answer(self, w, u, t, where):
        index = self.current[u] if where == 'now' else 1 - self.current[u]
        check(where == 'now' or self.setting.config.replay, 'answered from a buffer that is not there')
        check(self.weights[u][index] == self.expected(u, t), 'pull answered with another version')
        check(not self.is_over(t), 'a pull of a step that is over is answered with weights')
        self.answered(w, u, t, (u, index))

    def void(self, w, u, t):
        check(self.is_over(t) or self.relay.version[u] > t, 'void, but the version stands or will come')
        self.answered(w, u, t, None)

    def answered(self, w, u, t, reading):
        """Without weights, a worker goes on all the same: what it sends is of a step that is over."""
        check((w, t, u) in self.pulls, 'an answer to no pull')
        i = self.pulls.index((w, t, u))
        self.pulls = self.pulls[:i] + self.pulls[i + 1:]
        worker = self.workers[w]
        for i, q in enumerate(worker.passes):
            say = self.program(q)
            if q.waiting and q.t == t and visits_in(self.setting, t)[say[q.pc][1]] == u:
                check(reading or self.is_over(t), 'a worker gets no weights for its share')
                q = q._replace(pc=q.pc + 1, waiting=False, reading=reading)
                self.replace(w, passes=worker.passes[:i] + ((q,) if q.pc < len(say) else ()) + worker.passes[i + 1:])
                return

    def refused(self, event, x, stale):
        """A live worker is refused only what has been overtaken: a step that is over. Its pulls never are."""
        if event[0] == 'pull':
            self.pulls = self.pulls[:-1]
        if stale or not isinstance(x[0], int):
            return
        w = self.workers[x[0]]
        check(event[0] in ('loss', 'contribution', 'digest'), 'refused: %s %s' % (event, x))
        t = event[2]
        check(self.is_over(t), 'a live worker is refused: %s %s' % (event, x))
        self.replace(x[0], passes=tuple(q for q in w.passes if q.t > t))
        if event[0] == 'contribution' and w.slots[event[7]] and w.slots[event[7]][1] == event[3:6]:
            self.replace(x[0], slots=w.slots[:event[7]] + (None,) + w.slots[event[7] + 1:])

    def start_job(self):
        if self.running is None and self.queue:
            i = min(range(len(self.queue)), key=lambda i: self.queue[i][0])      # lowest unit, then oldest
            self.running = self.queue[i]
            self.queue = self.queue[:i] + self.queue[i + 1:]

    def finish_job(self, verdict):
        job, self.running = self.running, None
        u = job[0]
        if job[1] == 'update':
            check(u not in frozen_in(self.setting, self.relay.version[u]), 'frozen unit updated')
            for s in range(self.setting.config.slices):
                record = self.sums[u, s] if self.is_summed(u) else self.moments[u, s]
                if self.is_summed(u):
                    record = ('decay',) + record
                check(record == ('decay',) + self.full(u, self.relay.version[u]), 'update of unit %d finds %s' % (u, record))
                self.base = {**self.base, (u, s): intern((self.base[u, s], self.relay.version[u], record))}
                self.moments, self.sums = {**self.moments, (u, s): ()}, {**self.sums, (u, s): ()}
            if self.setting.config.replay:
                self.current = {**self.current, u: 1 - self.current[u]}
            both, new = self.weights[u], self.base[u, 0]
            self.weights = {**self.weights, u: (both[0], new) if self.current[u] else (new, both[1])}
            self.intern_numbers()
            self.feed('updated', u)
            return
        _, v, p, s, w, k, first, kept = job
        written = kept or self.workers[w].slots[k]
        check(written and written[1] == (v, p, s) and written[0] == self.relay.t or self.relay.t in self.skipped
              or (self.relay.t - 1) in self.skipped, 'fold of a slot that holds %s, not %s' % (written, (v, p, s)))
        if verdict == 'ok':
            summed = self.is_summed(u)
            old = (self.sums if summed else self.moments)[u, s]
            above, old, below = self.split(old, u, v, self.relay.t)
            check((v, p) not in old or first == 'first' and summed, 'folded twice')
            check(old or first == 'first', 'a sum is added to before it is begun')
            if summed:
                new = above + (((v, p),) if first == 'first' else old + ((v, p),)) + below
            else:
                new = old + (('decay',) if first == 'first' else ()) + ((v, p),)
            if not self.setting.config.deterministic:               # sums commute: forget the order
                new = tuple(x for x in new if x == 'decay') + tuple(sorted((x for x in new if x != 'decay'),
                                                                           key=lambda x: (-x[0], x[1])))
            if summed:
                self.sums = {**self.sums, (u, s): new}
            else:
                self.moments = {**self.moments, (u, s): new}
            self.intern_numbers()
        finished = not self.relay.is_unfinished(p)
        self.damaged = (w, p if finished else None) if verdict == 'damaged' else None
        self.feed('folded', u, s, verdict)
        self.damaged = None

    def intern_numbers(self):
        """What stands for them in a key."""
        self.numbers = intern(tuple(tuple(x.values()) for x in (self.base, self.moments, self.sums, self.weights,
                                                                self.current)))

    def check_relay(self, r):
        """What does not depend on the rest of the world."""
        if r.t < 0:
            return
        for u, version in r.version.items():
            low, high = (r.t - 1, r.t) if r.tail == r.t - 1 else (r.t, r.t + 1)
            check(low <= version <= high, 'unit %d at version %d in step %d' % (u, version, r.t))
        for w, cells in r.inbox.items():
            check(len(cells) == 1 + self.setting.config.slots, 'inbox has grown')
            full = [x for x in cells if x]
            check(len(full) == len(set(full)), 'one name in two slots')

    def invariants(self):
        r = self.relay
        if r.t < 0:
            return
        c = self.setting.config
        if c.commit == 'eager' and c.optimizer == 'adamw' and c.parts > 1:
            check(len(self.accumulated()) <= c.accumulators, 'more accumulators than there are')
        if self.load(None) and not r.torn:
            for w, room in self.rooms.items():
                check(self.load(w) >= room, 'a part waits, and worker %d has room' % w)

    # ---- moves ------------------------------------------------------------------------------------------------

    def moves(self):
        """(progress, faults and requests). Only the first must exist for there to be no deadlock."""
        go, may = [], []
        if self.torn:
            return go, may
        s, r = self.setting, self.relay
        alive = sorted(self.rooms)
        if r.covered and r.t + 1 < s.steps and alive and sum(self.rooms.values()) >= s.config.parts:
            go.append(('open',))
        for i in [w for w in alive if w not in self.silent]:
            w = self.workers[i]
            if w.queue:
                go.append(('deliver', i))
            if len(w.queue) < max(1, s.queue):
                go += [('send', i, j) for j, q in enumerate(w.passes) if self.next_message(w, q)]
                may += self.lies(i, w) if self.faults else []
        if self.running:
            go.append(('job', 'ok'))
        go += [('release', u) for u, _ in (self.captured[:1] if s.coarse else self.captured)]
        if self.stale:
            go.append(('stale',))
        if self.asleep is not None:
            go += [('back', n) for n in s.later or (ANY,)]
        if self.late:
            (may if alive else go).extend([('attach', n) for n in s.later or (ANY,)])
        go += [('kill', w) for w in sorted(self.silent) if not self.has_sent_all(w)]
        go += [('retire', w) for w in sorted(self.leaving) if self.may_retire(w)]
        if self.saves and r.t >= 0:
            may.append(('save',))
        if self.faults and r.t >= 0:
            for fault in s.faults:
                if fault in ('kill', 'stop', 'resume'):
                    may += [(fault, i) for i in alive if (fault != 'resume' or s.queue) and i not in self.silent]
                elif fault == 'dup' and self.last:
                    may.append(('dup',))
                elif fault == 'again' and self.last and self.last[0] == 'pull':
                    may.append(('again',))
                elif fault == 'ahead':
                    may += [('ahead', i) for i in alive]
                elif fault == 'leave':
                    may += [('leave', i) for i in alive if i not in self.leaving]
                elif fault in ('bad', 'damage') and self.running and self.running[1] != 'update':
                    may.append((fault,))
                elif fault == 'badloss':
                    may += [('badloss', i, j) for i in alive for j, q in enumerate(self.workers[i].passes)
                            if (self.next_message(self.workers[i], q) or (0, ' '))[1][0] == 'loss']
                elif fault == 'liar' and not self.liars:
                    may += [('liar', i) for i in alive]
                elif fault == 'quit' and self.audit:
                    may += [('quit', w) for w in {self.referee, self.audit[1] if self.audit[2] else None} - {None}]
        if self.changes and r.t >= 0:
            change = [('room', w, n) for w in alive if w not in self.leaving for n in range(s.config.parts + 1)
                      if n != self.rooms[w]]
            if go or not self.is_short():
                may += change
            else:
                go += [m for m in change if m[2] > self.rooms[m[1]]]
        return go, may

    def lies(self, i, w):
        """What is heard of this step alone: else nobody could be blamed."""
        return [('lie', i, j) for j, q in enumerate(w.passes) if 'lie' in self.setting.faults and q.t == self.relay.t
                and self.may_lie(self.next_message(w, q))]

    def may_lie(self, message):
        return bool(message and self.audit and not self.relay.covered and (message[1][0] == 'digest' or
                    message[1][0] == 'contribution' and message[1][3] == self.audit[0]))

    def next_message(self, w, q):
        """(place in the program, event without its worker) of what a pass sends next; None while it cannot."""
        say = self.program(q)
        if q.waiting or not q.audit and 'quit' not in self.setting.faults and any(x.audit and x.t == q.t for x in w.passes):
            return None
        for pc in range(q.pc, len(say)):
            what, x = say[pc]
            if what == 'pull':
                return pc, ('pull', q.t, visits_in(self.setting, q.t)[x])
            if q.audit:
                if what == 'contribution':
                    return pc, ('digest', q.t, *x, 0)
                continue
            if what == 'loss':
                return pc, ('loss', q.t, x, dict(q.share)[x], 'ok')
            groups, grant = self.setting.config.groups, w.grant[1] if w.grant else None
            if grant and not groups and (-x[0],) + x[1:] < (-grant[0],) + grant[1:]:
                continue                                            # folded already
            tag = (q.t, x, dict(q.share)[x[1]])
            if tag in w.slots:
                continue
            slot = next((k for k in range(1, len(w.slots)) if w.slots[k] is None), None)
            may = x[1] <= grant[1] if groups and grant else x == grant
            if slot is None and may and w.slots[RESERVED] is None:
                slot = RESERVED
            return None if slot is None else (pc, ('contribution', q.t, *x, tag[2], slot) + (0,) * self.setting.audits)
        return None

    def send(self, i, j, verdict='ok', lie=0):
        w = self.workers[i]
        q = w.passes[j]
        pc, message = self.next_message(w, q)
        if i in self.liars and q.t == self.relay.t and self.may_lie((pc, message)):
            lie = 1 + i
        if lie:
            message = message[:-1] + (lie,)
        if q.reading and not (q.t == self.relay.t and self.relay.covered) and q.t >= self.relay.t:
            u, index = q.reading
            check(self.weights[u][index] == self.expected(u, q.t), 'weights changed under a reading worker')
        say = self.program(q)
        if message[0] == 'contribution':
            tag = (q.t, message[2:5], message[5])
            self.wrong = frozenset(x for x in self.wrong if x[0] != (i, tag)) | ({((i, tag), lie)} if lie else set())
            self.replace(i, slots=w.slots[:message[6]] + ((q.t, message[2:5], message[5]),) + w.slots[message[6] + 1:])
        waiting = message[0] == 'pull'
        q = q._replace(pc=pc if waiting else pc + 1, waiting=waiting, reading=None)
        if message[0] == 'loss':
            message = message[:4] + (verdict,)
        self.replace(i, passes=w.passes[:j] + ((q,) if q.pc < len(say) else ()) + w.passes[j + 1:],
                     queue=w.queue + (message,))
        if not self.setting.queue:
            self.deliver(i)
            w = self.workers[i]
            if self.setting.coarse and waiting:                     # answered: take the next pull along
                after = self.next_message(w, w.passes[j]) if j < len(w.passes) else None
                if after and after[1][0] == 'pull':
                    self.send(i, j)

    def deliver(self, i):
        w = self.workers[i]
        message = w.queue[0]
        self.replace(i, queue=w.queue[1:])
        event = (message[0], i) + message[1:]
        self.last = event
        self.feed(*event)

    def detach(self, i):
        """The world's side of a loss. What the thread is to read stays in memory."""
        w = self.workers[i]

        def keep(job):
            return job[:7] + (job[7] or w.slots[job[5]],) if job and job[1] != 'update' and job[4] == i else job
        self.queue = tuple(keep(job) for job in self.queue)
        self.running = keep(self.running)
        self.workers[i] = new_worker(self.setting)
        self.end_audit(i)
        self.rooms = {w: room for w, room in self.rooms.items() if w != i}
        self.leaving -= {i}
        self.silent -= {i}
        self.pulls = tuple(x for x in self.pulls if x[0] != i)
        if self.last and self.last[1] == i:
            self.last = None

    def move(self, m):
        what = m[0]
        r = self.relay
        if what == 'open':
            self.open()
        elif what == 'send':
            self.send(m[1], m[2])
        elif what == 'deliver':
            self.deliver(m[1])
        elif what == 'job':
            self.finish_job('ok')
        elif what == 'release':
            u, version = next(x for x in self.captured if x[0] == m[1])
            self.captured = tuple(x for x in self.captured if x[0] != u)
            for s in range(self.setting.config.slices):
                check(self.base[u, s] == self.expected(u, version) and not self.moments[u, s],
                      'captured another version')
            check(self.weights[u][self.current[u]] == self.expected(u, version), 'captured other weights')
            self.feed('released', 'disk', u)
        elif what == 'stale':
            event, self.stale = self.stale[0], self.stale[1:]
            self.feed(*event, stale=True)
        elif what in ('back', 'attach'):
            if what == 'back':
                i, self.asleep = self.asleep, None
            else:
                i = self.setting.workers + self.setting.late - self.late
                self.late -= 1
            self.replace(i, attached=True)
            self.rooms = {**self.rooms, i: m[1]}
            self.feed('attached', i)
        elif what == 'room':
            self.changes -= 1
            self.change_room(*m[1:])
        elif what == 'retire':
            self.detach(m[1])
            self.feed('lost', m[1])
        elif what == 'save':
            self.saves -= 1
            self.feed('save', 'disk')
        else:
            self.faults -= m[1:] not in [(w,) for w in self.silent]
            self.fault(*m)

    def open(self):
        """Evenly, as far as there is room."""
        s, r = self.setting, self.relay
        self.open_too_much()
        owners = []
        for _ in range(s.config.parts):
            able = [w for w, room in self.rooms.items() if owners.count(w) < room]
            owners.append(min(able, key=lambda w: (owners.count(w), w)))
        t = r.t + 1
        owners = tuple(sorted(owners))
        self.feed('open', t, visits_in(s, t), frozen_in(s, t), owners, *self.choose_audit(t, owners))
        check(self.relay.t == t, 'an open within the rooms is refused')

    def choose_audit(self, t, owners):
        if not self.setting.audits:
            return ()
        part = t % len(owners)
        others = sorted(set(self.rooms) - self.silent - {owners[part]})
        return (), ((part, others[t % len(others)] if others else owners[part]),)

    def open_too_much(self):
        """All parts for one worker, wherever that is beyond its room."""
        s, r = self.setting, self.relay
        for w, room in self.rooms.items():
            if room < s.config.parts:
                twin = copy_relay(r)
                actions = twin.feed(('open', r.t + 1, visits_in(s, r.t + 1), frozen_in(s, r.t + 1), (w,) * s.config.parts))
                check([a[:2] for a in actions] == [('refuse', 'client')] and twin.t == r.t,
                      'a step opens beyond the rooms')

    def change_room(self, w, room):
        self.rooms = {**self.rooms, w: room}
        self.feed('room', w, room)

    def fault(self, what, i=None, j=None):
        r = self.relay
        if what in ('kill', 'stop'):
            if what == 'stop':
                w = self.workers[i]
                late = [(x[0], i) + x[1:] for x in w.queue]
                late += [(x[0], i) + x[1:] for _, x in filter(None, [self.next_message(w, q) for q in w.passes])]
                if i in self.liars:
                    late = [x[:-1] + (1 + i,) if x[0] == 'digest' else x for x in late]
                self.stale = tuple(late[:2])
                self.asleep = i
            self.detach(i)
            self.feed('lost', i)
        elif what == 'dup':
            last, self.last = self.last, None
            self.feed(*last, stale=True)
        elif what == 'again':
            self.stale += (self.last,)
        elif what == 'ahead':
            self.feed('pull', i, r.t + 1, visits_in(self.setting, r.t + 1)[0])
        elif what == 'leave':
            self.leaving |= {i}
            self.change_room(i, 0)
        elif what == 'bad':
            self.bad += ((r.t, self.running[2]),)
            self.finish_job('bad')
        elif what == 'damage':
            self.finish_job('damaged')
        elif what == 'lie':
            self.send(i, j, lie=10 + self.faults)
        elif what == 'liar':
            self.liars |= {i}
        elif what == 'quit':
            self.silent |= {i}
            self.replace(i, passes=(), queue=())
            self.change_room(i, 0)
            self.feed('unaudit', i)
        elif what == 'badloss':
            q = self.workers[i].passes[j]
            part = self.next_message(self.workers[i], q)[1][2]
            self.bad += ((q.t, part),) * (1 + (q.t == r.t and r.loss[part]))    # finite once: counts as the second
            self.send(i, j, 'bad')
        elif what == 'resume':
            w = self.workers[i]
            again = []
            for q in w.passes:
                say = self.program(q)
                again += [('loss', q.t, x, dict(q.share)[x], 'ok') for y, x in say[:q.pc] if y == 'loss']
                if q.audit:
                    again = [('digest', q.t, *x, 0) for y, x in say[:q.pc] if y == 'contribution']
                if q.waiting:
                    again.append(('pull', q.t, visits_in(self.setting, q.t)[say[q.pc][1]]))
            again += [m for m in w.queue if m[0] in ('loss', 'digest') and m not in again]
            again += [('contribution', tag[0], *tag[1], tag[2], k) + (self.digest_of(i, tag),) * self.setting.audits
                      for k, tag in enumerate(w.slots) if tag]
            self.replace(i, queue=tuple(again))

    def final(self):
        """Nothing more will happen of itself: is that the end it should be? True: a step waits for room."""
        check(not self.torn or not self.relay.waiting, 'a pull is never answered')
        if self.torn or not self.rooms:
            return False                                            # the step waits for a worker, and says so
        if not self.is_short():
            self.final_done()
            return False
        if self.relay.covered:
            self.open_too_much()
        for w in [len(self.workers)] + sorted(set(self.rooms) - self.leaving - self.silent)[:1]:
            self.copy().finish_with(w)
        return True

    def finish_with(self, w):
        """A worker gets room for all parts, and nothing else happens from now on: all is done in the end."""
        parts = self.setting.config.parts
        self.trace = None
        if w == len(self.workers):
            self.workers.append(new_worker(self.setting, True))
            self.rooms = {**self.rooms, w: parts}
            self.feed('attached', w)
        else:
            self.change_room(w, parts)
        for _ in range(10000):
            go, _ = self.moves()
            if not go:
                break
            self.move(go[0])
        check(self.lied or not self.torn and not self.is_short(), 'room for all does not help')
        if not self.torn:
            self.final_done()

    def final_done(self):
        r = self.relay
        check(self.done == self.setting.steps, 'deadlock in step %d' % r.t)
        check(not r.readers and not r.jobs and not self.running, 'something is left')
        check(not any(x for cells in r.inbox.values() for x in cells), 'a slot is never freed')
        check(not any(x for w in self.workers if w.attached for x in w.slots), 'a worker waits for a slot')
        check(not r.waiting, 'a pull is never answered')
        for (u, s), base in self.base.items():
            check(base == self.expected(u, self.setting.steps), 'the end differs from the fault-free one')
