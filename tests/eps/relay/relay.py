#!/usr/bin/env python3
"""relay.py - the step protocol as an executable specification.

The relay decides who works on which part, when a slice is folded, when a unit is updated, which pull is
answered and when a reader may look. It does no I/O and holds no numbers: one event in, a list of actions out,
in a fixed order, so that eps/relay/ can be compared with it line by line (compare.py):

    relay.py --trace FILE       echoes each event and puts its actions under it, indented by two blanks

Terms are those of eps/relay/relay.h:
  visit   place of a unit in the computation, 0 at the bottom; a tied unit is visited twice. Backward runs from
          the last visit to visit 0. A contribution's *name* within its step is (visit, part, slice): without the
          visit, the two contributions of a tied unit would have one name. A step's open says which unit each visit has:
          a step may compute its units in another order than the one before. Nothing here knows an order of units
          besides.
  mark    the lowest name not yet folded, in *fold order*: visit downwards, then part, then slice upwards. With `groups`,
          where a worker may take some of its parts through the whole model before the next, part upwards comes first.
          It only ever moves on.
  audit   of some steps one part, the *audited* one, is computed by a second worker, the auditor, too; or once more by the
          same one. The auditor sends a digest of each slice in place of a contribution. It audits before it computes parts of
          its own, so that it waits for weights alone: then whatever waits for a digest does not wait for ever.

Events                                        from
  attached W [N] | room W N                   membership: worker W may have N unfinished parts; without N, any number
  lost W                                      membership; final, a worker that comes back attaches anew
  open T VISITS FROZEN OWNERS [SLICES [P:W]]  client: units by visit, units to leave alone, worker of each part;
                                              slices by visit if they differ (-: they do not); audited part, and auditor
  pull W T U                                  worker: weights of unit U at version T
  loss W T P A ok|bad                         worker: part P went forward in attempt A; is its loss finite?
  contribution W T V P S A K [D]              worker: the slice stands in slot K of its inbox; D: the digest of its bytes, if
                                              its part is audited
  digest W T V P S D                          auditor: the digest of the slice as it has computed it
  unaudit W                                   membership: if W is the auditor, it sends no digest any more
  folded U S ok|bad|damaged | updated U       optimizer thread; nothing was folded if it is not finite (bad), or not what its
                                              worker has sent any more (damaged): host memory has changed
  save R | released R U                       a reader (checkpoint, evaluation, export) comes; has read unit U
Actions
  audit W T P                                 audit part P, and only then compute your share: at the step's open; later, to
                                              decide, by a third worker or again: the share after it is begun anew
  share W T P:A...                            these parts are yours, in these attempts
  answer W U T now|before                     weights of version T, in the current or in the replay buffer
  void W U T                                  no weights: version T is of no use any more
  refuse W WHY                                to the event just fed; a worker at fault is lost at once
  fold U V P S W K first|next                 job: first decays (or clears the sum), then adds. W, K: where it lies
  update U                                    job: (sum into moments,) new weights
  free W K V P S                              slot K, if it still holds that name, may be written again
  grant W V P S                               the reserved slot is for names up to that one; without `groups`, all
                                              names below it are folded
  again W                                     begin the share after this anew: its result is compared once more
  redo W                                      begin the share after this anew: what it has sent was damaged
  liar W                                      a slice of W's differed, and two other results agree: it is lost
  undecided W X                               W's and auditor X's results differ, and no third one decides: the job is over
  covered T | skipped T | done T | torn T     folded entirely: T+1 may open; left no trace; all at T+1; lost
  capture R U T | saved R T | abandon R       read unit U now, it is at T and stays; all read; will not come
"""
import sys
from collections import namedtuple

# slots: of one worker's inbox, apart from slot 0, the reserved one. accumulators: units, for adamw with parts.
# commit: eager, a unit is updated once its contributions are folded; fenced, all are, once all of the step are, which are
#   held as sums until then; folded, likewise, but contributions go into the moments at once: of adama alone.
# groups: a worker takes its parts in ascending order, in row groups of parts that follow each other; not eager.
Config = namedtuple('Config', 'parts slices slots accumulators optimizer commit deterministic replay groups',
                    defaults=(2, 1, 2, 1, 'adama', 'eager', False, True, False))
RESERVED = 0
ANY = 1 << 32                   # room for any number of parts


class Relay:
    def __init__(self, config):
        self.config = config
        self.t = -1             # the open step; -1 before the first
        self.visits = ()        # unit of each visit, bottom first
        self.frozen = ()        # units that advance without an update
        self.names = ()         # all names of the step, in fold order
        self.version = {}       # unit -> version
        self.owner = []         # part -> worker, or None
        self.attempt = []       # part -> attempt
        self.loss = []          # part -> its loss is known to be finite
        self.faults = []        # part -> attempts of it that sent numbers that are not finite
        self.folded = set()     # names
        self.jobs = {}          # (unit, slice) -> (worker, slot, tag): folds with the thread
        self.updating = set()   # units whose update is with the thread
        self.inbox = {}         # worker -> [tag or None] of 1 + slots; a tag is (t, name, attempt). Keys: the attached
        self.room = {}          # worker -> most unfinished parts; 0: it is leaving, and finishes those that it has
        self.granted = {}       # worker -> tag last granted
        self.waiting = []       # (worker, t, unit): pulls, oldest first
        self.readers = {}       # reader -> (version, units to be captured, units captured and not released)
        self.covered = True     # the open step needs no worker any more
        self.tail = None        # a covered step with units still to be updated
        self.torn = False
        self.audited = None     # part of the open step that is audited
        self.audits = None      # worker that audits it, or did until it was lost
        self.auditing = False   # whether digests are still waited for
        self.digests = {}       # name -> digest of the auditor's
        self.given = {}         # (worker, slot) -> digest of what stands there of the audited part
        self.dispute = None     # (name, its first worker, its digest): the auditor's differs; a third result decides
        self.referee = None     # a third worker that audits for it
        self.recruited = set()  # workers that were a third one in this step
        self.theirs = {}        # digests of the referee
        self.out = []

    # ---- the rules, one predicate each ------------------------------------------------------------------------

    def is_current(self, w, p, attempt):
        """Only the worker that a part is with now, in its present attempt, speaks for it."""
        return self.owner[p] == w and self.attempt[p] == attempt

    def is_held(self, u):
        """A reader looks at the unit, so its jobs are withheld."""
        return any(u in captured for _, _, captured in self.readers.values())

    def is_summed(self, u):
        """The unit's contributions are summed before they touch m and v; else each goes there directly.
        Tied units always are: both visits belong to one gradient. They and fenced sums have buffers of their own, but
        where accumulators serve: there the lower visit of a tied unit takes one."""
        c = self.config
        return c.commit == 'fenced' or self.is_tied(u) or (c.optimizer == 'adamw' and c.parts > 1)

    def is_tied(self, u):
        return self.visits.count(u) > 1

    def is_apart(self, u):
        """Each visit of the unit has a sum of its own; the update adds the two. So a gradient does not depend on whether
        all parts come to one visit before one comes to the other, as they do without row groups."""
        return self.config.parts > 1 and self.is_tied(u)

    def accumulates(self, v):
        """The visit's contributions are summed in an accumulator."""
        c, u = self.config, self.visits[v]
        if c.commit != 'eager' or c.optimizer != 'adamw' or c.parts == 1:
            return False
        return not self.is_tied(u) or v == self.visits.index(u)

    def is_one_sum(self, a, b):
        """These names are summed in the same place."""
        u = self.visits[a[0]]
        return a[2] == b[2] and u == self.visits[b[0]] and (a[0] == b[0] or not self.is_apart(u))

    def has_accumulator(self, v):
        """Accumulators go to the first units of the backward order that are not yet updated, never first come
        first served: a lower unit that takes the last one waits for workers that wait for a higher one."""
        if not self.accumulates(v):
            return True
        above = [w for w in range(v + 1, len(self.visits)) if self.accumulates(w)
                 and self.visits[w] not in self.frozen and self.version[self.visits[w]] == self.t]
        return len(above) < self.config.accumulators

    def is_next_part(self, name):
        """Under --deterministic, the names of one sum are folded in fold order."""
        if not self.config.deterministic:
            return True
        mine = [n for n in self.names if self.is_one_sum(n, name)]
        return all(n in self.folded for n in mine[:mine.index(name)])

    def is_foldable(self, name):
        """The thread holds at most one fold of a slice: so a bad one can be redone in its place in the order,
        and the first good one is known to be first."""
        u = self.visits[name[0]]
        known = all(self.loss) or self.config.commit != 'eager'
        return (self.tail is None and known and self.version[u] == self.t and not self.is_held(u)
                and name not in self.folded and (u, name[2]) not in self.jobs
                and self.has_accumulator(name[0]) and self.is_next_part(name))

    def is_agreed(self, name, w, k):
        """What stands in the slot is what the auditor has computed, or no auditor will say."""
        if name[1] != self.audited:
            return True
        return self.digests[name] == self.given[w, k] if name in self.digests else not self.auditing

    def is_first(self, name):
        """Nothing has been folded into this sum in this step."""
        return not any(self.is_one_sum(n, name) for n in self.folded)

    def is_ready(self, u):
        """Every part has contributed all slices in all visits; not eager: of all units."""
        return all(n in self.folded for n in self.names
                   if self.config.commit != 'eager' or self.visits[n[0]] == u)

    def is_begun(self):
        """Parts whose losses are not known yet can be skipped no more. Eager, no loss is missing by then."""
        return self.config.commit == 'folded' and bool(self.folded or self.flying())

    def can_redo(self, p):
        """Version t of every unit stands: from replay, or because no unit can have been updated without p."""
        if self.config.replay or self.config.commit != 'eager':
            return True
        return not any(n[1] == p for n in list(self.folded) + self.flying())

    def is_unfinished(self, p):
        """Some of the part's names are neither folded nor with the thread."""
        sure = self.folded.union(self.flying())
        return not self.covered and any(n[1] == p and n not in sure for n in self.names)

    def is_back(self, p):
        """One of its names alone is not sure: until it was found damaged, the part counted as finished."""
        return sum(n[1] == p for n in set(self.names) - self.folded.union(self.flying())) == 1

    def flying(self):
        """Names of the open step that the thread has and may yet find bad."""
        return [tag[1] for _, _, tag in self.jobs.values() if tag[0] == self.t]

    def find_mark(self):
        return next((n for n in self.names if n not in self.folded), None)

    def find_reserved(self):
        """The highest name that the reserved slot of the mark's worker is for. The mark; with row groups also what follows it
        in the worker's order, as far as no other worker's part comes between."""
        mark = self.find_mark()
        if not self.config.groups or mark is None:
            return mark
        p = mark[1]
        while p + 1 < len(self.owner) and self.owner[p + 1] == self.owner[p]:
            p += 1
        return [n for n in self.names if n[1] == p][-1]

    def may_use_reserved(self, name):
        """These names are foldable, or will be with nobody's help but the thread's, the readers' and the worker's own, which
        sends them in fold order within each sum: so what stands in a reserved slot always leaves it. Anything else there
        may wait for the very work that needs the slot."""
        first, last = self.find_mark(), self.find_reserved()
        return first is not None and self.names.index(first) <= self.names.index(name) <= self.names.index(last)

    def load(self, w):
        return sum(o == w and self.is_unfinished(p) for p, o in enumerate(self.owner))

    def with_room(self):
        return [w for w in self.inbox if self.load(w) < self.room[w]]

    def is_over(self, t):
        """No worker is needed for the step any more, so nothing that one makes of its weights will be taken."""
        return self.torn or t < self.t or (t == self.t and self.covered)

    def buffer_of(self, t, u):
        """'now', 'before' (the replay buffer), 'wait' if version t of u is not there yet, 'void' if it is gone, or
        stands but is of no use: what the worker would read may be overwritten at any moment."""
        if self.is_over(t):
            return 'void'
        if self.version[u] <= t:
            return 'now' if self.version[u] == t else 'wait'
        return 'before' if self.config.replay and t == self.t else 'void'

    # ---- events -----------------------------------------------------------------------------------------------

    def feed(self, event):
        self.out = []
        if self.torn:
            if event[0] in ('open', 'loss', 'contribution', 'digest', 'save'):
                self.refuse('client' if event[0] == 'open' else event[1], 'torn')
            elif event[0] == 'pull':
                self.on_pull(*event[1:])
        else:
            getattr(self, 'on_' + event[0])(*event[1:])
            self.pump()
        return self.out

    def act(self, *action):
        self.out.append(action)

    def refuse(self, w, why):
        self.act('refuse', w, why)

    def on_attached(self, w, room=ANY):
        if w in self.inbox:
            return self.refuse(w, 'attached already')
        self.inbox[w] = [None] * (1 + self.config.slots)
        self.room[w] = room
        self.place()                                      # joins at the next step, unless a part has nobody

    def on_room(self, w, room):
        if w in self.inbox:
            self.room[w] = room

    def on_lost(self, w):
        """What it had in its inbox goes, for the attempt will not be current; what the thread has stands, in
        memory of the daemon's own that outlives the worker."""
        if w not in self.inbox:
            return
        del self.inbox[w], self.room[w]
        self.granted.pop(w, None)
        self.given = {(x, k): d for (x, k), d in self.given.items() if x != w}
        self.on_unaudit(w)
        if self.dispute and w == self.dispute[1]:
            self.dispute = None                           # another worker's result is compared anew
        self.recruited.discard(w)
        self.waiting = [x for x in self.waiting if x[0] != w]
        self.owner = [None if o == w else o for o in self.owner]
        self.place()

    def on_unaudit(self, w):
        """A lost auditor ends the audit, not the step. The results that it has sent still count."""
        if w == self.audits:
            self.auditing = False
        if w == self.referee:
            self.referee, self.dispute = None, None       # what differs is found once more

    def on_open(self, t, visits, frozen, owners, slices=(), audit=()):
        if t != self.t + 1 or not self.covered:
            return self.refuse('client', 'not the next step')
        if len(owners) != self.config.parts or any(w not in self.inbox for w in owners):
            return self.refuse('client', 'a part without a worker')
        if any(owners.count(w) > self.room[w] for w in self.inbox):
            return self.refuse('client', 'more parts than a worker has room for')
        if audit and (audit[0][0] >= len(owners) or audit[0][1] not in self.inbox):
            return self.refuse('client', 'no such audit')
        for u in visits:
            if u not in self.visits:
                self.version[u] = t                       # a new unit, or one that sat steps out
        self.t, self.visits, self.frozen = t, visits, frozen
        slices = slices or (self.config.slices,) * len(visits)
        names = [(v, p, s) for v in reversed(range(len(visits))) if visits[v] not in frozen
                 for p in range(self.config.parts) for s in range(slices[v])]
        self.names = tuple(sorted(names, key=lambda n: n[1] if self.config.groups else 0))
        self.owner = list(owners)
        self.attempt = [0] * self.config.parts
        self.loss = [False] * self.config.parts
        self.faults = [0] * self.config.parts
        self.folded = set()
        self.granted = {}
        self.covered = False
        self.audited, self.audits = audit[0] if audit else (None, None)
        self.auditing, self.digests, self.given, self.dispute = bool(audit), {}, {}, None
        self.referee, self.theirs, self.recruited = None, {}, set()
        if audit:
            self.act('audit', self.audits, t, self.audited)
        for w in sorted(set(owners)):
            self.act('share', w, t, tuple((p, 0) for p, o in enumerate(owners) if o == w))

    def on_pull(self, w, t, u):
        """A worker may ask late, being slow or asked twice: that is no fault, and it hears that there is nothing."""
        if w not in self.inbox or u not in self.version or t > self.t + 1 \
                or (u not in self.visits and not self.is_over(t)):
            return self.refuse(w, 'no such pull')
        self.waiting.append((w, t, u))
        self.answer_waiting()

    def on_loss(self, w, t, p, attempt, verdict):
        """Eager, no slice is folded before every part's loss is known to be finite: so a step that will not end well
        mostly says so while it can still be skipped. Fenced, it can be skipped to its end: its parts may go forward one
        after another, and each is folded once its own loss is known. So may they folded; there, as nothing can be skipped
        once something was folded, a loss that is not finite then is a fault, as a slice is."""
        if t != self.t or self.covered or p >= len(self.owner) or not self.is_current(w, p, attempt):
            return self.refuse(w, 'stale')
        if self.tail is not None:
            return self.refuse(w, 'loss before all weights')
        if verdict == 'ok':
            self.loss[p] = True
        elif self.loss[p] or self.is_begun():             # finite once: it is the worker that is wrong
            self.fault(w, p)
        else:
            self.give_up()

    def on_contribution(self, w, t, v, p, s, attempt, k, digest=0):
        """Judged by its name; a duplicate is dropped. Slot k is freed for a name that is folded already, but
        never when the slot holds something else: then this is an old message delivered twice."""
        name = (v, p, s)
        if w not in self.inbox or t != self.t or name not in self.names or k > self.config.slots:
            return self.refuse(w, 'no such contribution')
        if not self.is_current(w, p, attempt):
            return self.refuse(w, 'stale')
        cell, tag = self.inbox[w][k], (t, name, attempt)
        if cell == tag:
            return
        if name in self.folded or tag in self.inbox[w]:
            if cell is None:
                self.act('free', w, k, *name)
            return
        if self.covered:
            return self.refuse(w, 'step is over')         # it was skipped
        if cell is not None:
            return self.refuse(w, 'slot in use')
        if k == RESERVED and not self.may_use_reserved(name):
            return self.refuse(w, 'reserved slot')
        if not self.loss[p]:
            return self.refuse(w, 'loss first')
        self.inbox[w][k] = tag
        if p == self.audited:
            self.given[w, k] = digest

    def on_digest(self, w, t, v, p, s, digest):
        """The first one counts: an auditor that is given a new share begins anew."""
        if t != self.t or self.covered or not (w == self.audits and self.auditing or w in self.recruited):
            return self.refuse(w, 'no such audit')
        if p != self.audited or (v, p, s) not in self.names:
            return self.refuse(w, 'no such digest')
        if self.tail is not None:
            return self.refuse(w, 'digest before all weights')
        if w == self.audits and self.auditing:
            self.digests.setdefault((v, p, s), digest)
        if w == self.referee:
            self.theirs.setdefault((v, p, s), digest)

    def on_folded(self, u, s, verdict):
        w, k, tag = self.jobs.pop((u, s))
        t, name, attempt = tag
        self.clear(w, k, tag)
        if t != self.t or self.covered:
            return                                        # of a step that was skipped meanwhile
        if verdict == 'ok':
            self.folded.add(name)
            for other in sorted(self.inbox):              # the same slice, redone while this one was folded
                for slot, cell in enumerate(self.inbox[other]):
                    if cell and cell[:2] == (t, name):
                        self.clear(other, slot, cell)
        elif verdict == 'damaged':
            self.redo(w, name[1], attempt)
        elif self.config.commit == 'fenced':
            self.give_up()
        else:
            self.fault(w if self.is_current(w, name[1], attempt) else None, name[1])

    def on_updated(self, u):
        self.updating.discard(u)
        self.advance(u)

    def on_save(self, r):
        """The cut is the version that all units have, or will all have next: the present one while no fold of
        the open step was issued, else the one it leads to. Units already there are captured at once."""
        if r in self.readers or self.t < 0:
            return self.refuse(r, 'no such reader')
        touched = self.covered or self.folded or self.flying()
        units = set(self.visits)
        self.readers[r] = (self.t + 1 if touched else self.t, units, set())
        for u in sorted(units):
            self.capture(u)

    def on_released(self, r, u):
        if r not in self.readers:
            return
        version, to_come, captured = self.readers[r]
        captured.discard(u)
        if not to_come and not captured:
            del self.readers[r]
            self.act('saved', r, version)

    # ---- what events share ------------------------------------------------------------------------------------

    def clear(self, w, k, cell):
        """Empties a slot, if it still holds this: its worker may have been lost, and its place taken, since."""
        if w in self.inbox and self.inbox[w][k] == cell:
            self.inbox[w][k] = None
            self.given.pop((w, k), None)
            self.act('free', w, k, *cell[1])

    def fault(self, w, p):
        """Numbers that are not finite: once, the worker's fault, which is named and lost; twice, the model's."""
        self.faults[p] += 1
        if w is not None:
            self.refuse(w, 'not finite')
        if self.faults[p] > 1:
            self.give_up()
        elif w is not None:
            self.on_lost(w)
        else:
            self.place()

    def redo(self, w, p, attempt):
        """Nobody's fault, and the same numbers come again: so its worker begins its share anew, which is of parts that it has,
        even if its room has become less. But a part that counted as finished leaves it if others have its place since. If
        they are another's by now, or in another attempt, what is missing comes with it."""
        if not self.is_current(w, p, attempt):
            return self.place()
        if not all(map(self.can_redo, self.unfinished(w))):
            self.tear()
            return self.act('torn', self.t)
        if self.is_back(p) and max(1, self.room[w]) < self.load(w):
            self.owner[p] = None
            return self.place()
        self.act('redo', w)
        self.restart(w)

    def place(self):
        """Parts that nobody works on go to whoever has room and least to do, as a new attempt; or wait for room: a
        worker attaches, its room grows, or it has finished a part of its own."""
        moved = {}
        for p, owner in enumerate(self.owner):
            if owner is not None or not self.is_unfinished(p):
                continue
            if not self.can_redo(p):
                return self.give_up()
            able = self.with_room()
            if able:
                w = min(able, key=lambda w: (self.load(w), w))
                self.owner[p] = w
                self.attempt[p] += 1
                moved.setdefault(w, []).append((p, self.attempt[p]))
        for w in sorted(moved):
            self.act('share', w, self.t, tuple(moved[w]))

    def judge(self):
        """Compares what stands of the audited part with the auditor's digests. Is there more to compare?"""
        if self.dispute and self.referee is not None:
            return self.dispute[0] in self.theirs and self.decide(self.referee, self.theirs[self.dispute[0]])
        for name in self.names if self.digests else ():
            w = self.owner[self.audited]
            for k, cell in enumerate(self.inbox.get(w, ())):
                if cell and cell[:2] == (self.t, name) and name in self.digests and name not in self.folded:
                    if self.dispute and self.dispute[0] == name:
                        return self.decide(w, self.given[w, k])
                    if self.given[w, k] != self.digests[name]:
                        return self.differ(name, w, self.given[w, k])
        return False

    def unfinished(self, w):
        return [p for p, o in enumerate(self.owner) if o == w and self.is_unfinished(p)]

    def may_restart(self, w):
        return w in self.inbox and self.room[w] > 0 and all(map(self.can_redo, self.unfinished(w)))

    def differ(self, name, w, digest):
        """Either may be wrong. A third worker audits the part, too; if there is none, the auditor does again."""
        if self.dispute or not self.can_redo(self.audited):
            return self.end_undecided(w)
        self.dispute = name, w, digest
        able = [x for x in self.inbox if x not in (w, self.audits) and self.may_restart(x)]
        if able:
            self.recruit(min(able, key=lambda x: (self.load(x), x)))
        elif self.auditing and self.may_restart(self.audits):
            self.recruit(self.audits)
        else:
            return self.try_again()
        return True

    def recruit(self, w):
        self.referee, self.theirs = w, {}
        self.recruited.add(w)
        self.act('audit', w, self.t, self.audited)
        self.restart(w)

    def try_again(self):
        """The first worker computes it again."""
        first, self.referee = self.dispute[1], None
        if not self.may_restart(first):
            return self.end_undecided(first)
        self.act('again', first)
        self.restart(first)
        return True

    def restart(self, w):
        """It begins its share anew; so nothing of its own is in its slots but what the thread has."""
        for k, cell in enumerate(self.inbox[w]):
            if cell and cell not in [j[2] for j in self.jobs.values()]:
                self.clear(w, k, cell)
        self.granted.pop(w, None)
        mine = self.unfinished(w)
        for p in mine:
            self.attempt[p] += 1
        if mine:
            self.act('share', w, self.t, tuple((p, self.attempt[p]) for p in mine))

    def decide(self, w, digest):
        """One more result. It has to agree with one of another worker, as one that computes wrongly may do so twice alike; a
        worker's own counts if there was no other."""
        name, first, theirs = self.dispute
        other = first if digest == theirs else self.audits if digest == self.digests[name] else None
        if other == w and first != self.audits:
            return self.try_again() if w == self.referee else self.end_undecided(first)
        if other is None:
            return self.end_undecided(first)
        self.dispute = None
        liar = self.audits if digest == theirs else first
        if liar == self.audits:                           # a third one's results stand for those of the liar
            third = self.referee if self.referee != liar else None
            self.auditing, self.digests = third is not None, self.theirs if third is not None else {}
            self.audits, self.referee, self.theirs = liar if third is None else third, None, {}
        self.act('liar', liar)
        self.on_lost(liar)
        return True

    def end_undecided(self, first):
        self.act('undecided', first, self.audits)
        self.tear()
        return False

    def place_waiting(self):
        """A room grew, or folds just given out finish a worker's part."""
        self.place()

    def give_up(self):
        """The step will not be finished. With something in the moments, or on its way there: the model is torn. Else it is
        skipped: every unit's fence advances, nothing else does."""
        if self.config.commit != 'fenced' and (self.folded or self.flying()):
            self.tear()
            return self.act('torn', self.t)
        for w in sorted(self.inbox):
            for k, cell in enumerate(self.inbox[w]):      # those with the thread are freed when it has read them
                if cell and cell not in [j[2] for j in self.jobs.values()]:
                    self.clear(w, k, cell)
        self.act('skipped', self.t)
        self.cover(set(self.visits))

    def tear(self):
        """Nothing moves any more."""
        self.torn = True
        for r in sorted(self.readers):
            self.act('abandon', r)
        self.readers.clear()
        self.answer_waiting()

    def cover(self, without_job):
        """No worker is needed for the open step any more. Units without an update advance now."""
        self.covered = True
        self.tail = self.t
        self.act('covered', self.t)
        for u in sorted(without_job):
            self.advance(u)
        self.finish()

    def advance(self, u):
        self.version[u] += 1
        self.capture(u)                                   # before any fold beyond
        self.finish()

    def finish(self):
        if self.tail is not None and all(self.version[u] > self.tail for u in self.visits):
            self.act('done', self.tail)
            self.tail = None

    def capture(self, u):
        for r in sorted(self.readers):
            version, to_come, captured = self.readers[r]
            if u in to_come and self.version[u] == version:
                to_come.discard(u)
                captured.add(u)
                self.act('capture', r, u, version)

    def pump(self):
        """After each event: whatever has become possible, in a fixed order."""
        while not self.torn and not self.covered and self.judge():
            pass
        if self.torn:
            return
        if not self.covered:
            there = {cell[:2] for cells in self.inbox.values() for cell in cells if cell}
            for name in self.names:
                for w in sorted(self.inbox) if (self.t, name) in there else ():
                    for k, cell in enumerate(self.inbox[w]):
                        if cell and cell[:2] == (self.t, name) and self.is_foldable(name) and self.is_agreed(name, w, k):
                            u = self.visits[name[0]]
                            self.act('fold', u, *name, w, k, 'first' if self.is_first(name) else 'next')
                            self.jobs[u, name[2]] = (w, k, cell)
            for u in sorted(set(self.visits) - set(self.frozen)):
                if self.version[u] == self.t and u not in self.updating and self.is_ready(u):
                    self.updating.add(u)
                    self.act('update', u)
            if len(self.folded) == len(self.names):
                self.cover(set(self.frozen))
        self.answer_waiting()
        self.place_waiting()
        self.grant()

    def answer_waiting(self):
        """Oldest first. None waits for ever: its version comes, or its step ends."""
        waiting, self.waiting = self.waiting, []
        for w, t, u in waiting:
            where = self.buffer_of(t, u)
            if where == 'wait':
                self.waiting.append((w, t, u))
            elif where == 'void':
                self.act('void', w, u, t)
            else:
                self.act('answer', w, u, t, where)

    def grant(self):
        """To the worker that has the mark to do and no ordinary slot to put it in."""
        mark = self.find_mark()
        if self.covered or mark is None or mark in self.flying():
            return
        w, this = self.owner[mark[1]], (self.t, mark, self.attempt[mark[1]])
        if w is None or self.inbox[w][RESERVED] or None in self.inbox[w][1:] or this in self.inbox[w]:
            return
        last = self.find_reserved()
        that = (self.t, last, self.attempt[last[1]])
        if self.granted.get(w) != that:
            self.granted[w] = that
            self.act('grant', w, *last)


# ---- text ---------------------------------------------------------------------------------------------------------

def to_text(x):
    """('share', 1, 0, ((0, 1),)) -> 'share 1 0 0:1'; an empty tuple is '-', a tuple of numbers '0,1,0'."""
    def word(y):
        if isinstance(y, tuple):
            return ' '.join('%d:%d' % z for z in y) if y and isinstance(y[0], tuple) else ','.join(map(str, y)) or '-'
        return str(y).replace(' ', '_')
    return ' '.join(map(word, x))


def from_text(line):
    def value(word):
        return int(word) if word.lstrip('-').isdigit() and word != '-' else word
    words = [value(x) for x in line.split()]
    if words[0] == 'open':
        numbers = [() if x == '-' else tuple(int(y) for y in str(x).split(',')) for x in words[2:6]]
        audit = [(tuple(int(y) for y in x.split(':')),) for x in words[6:]]
        return (words[0], words[1], *numbers, *audit)
    return tuple(words)


def config_from_text(line):
    """'config parts=2 slices=1 slots=2 accumulators=1 optimizer=adama commit=eager deterministic=0 replay=1'"""
    given = dict(x.split('=') for x in line.split()[1:])
    return Config(**{k: v if k in ('optimizer', 'commit') else int(v) for k, v in given.items()})


def config_to_text(config):
    return 'config ' + ' '.join('%s=%s' % (k, v if isinstance(v, str) else int(v)) for k, v in config._asdict().items())


def main():
    if len(sys.argv) != 3 or sys.argv[1] != '--trace':
        sys.exit('usage: relay.py --trace FILE\n'
                 'First line: config ..., then one event per line; lines with # or a blank in front are skipped.')
    relay = None
    with open(sys.argv[2]) as trace:
        for line in trace:
            if not line.strip() or line[0] in '# ':
                continue
            print(line.rstrip())
            if relay is None:
                relay = Relay(config_from_text(line))
                continue
            for action in relay.feed(from_text(line)):
                print('  ' + to_text(action))


if __name__ == '__main__':
    main()
