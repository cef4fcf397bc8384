#!/usr/bin/env python3
"""search.py RELAY_PY [--mutants | --walks N] - searches the relay's executable specification with rooms.

RELAY_PY is the specification; check_relay.py, beside it, has a world of workers, an optimizer thread, readers and faults,
and searches every order of events. This adds rooms, as generate.py's roomed() extends the specification by them. A
worker attaches with room for some parts; its room changes; it is told to leave, and goes once it has nothing left.
Without an option: every order of the small settings, then 2,000 random walks in larger ones. --walks N: N walks alone.
--mutants breaks one rule of rooms at a time and shows that the search notices. Exit status 1 if anything is found, or
missed. One process.

Besides all that check_relay.py checks, at every event:
  no worker is given more unfinished parts than it has room for, and none keeps a part waiting that it has room for;
  a part leaves its worker only when the worker is lost; a step is skipped only if numbers were not finite;
  a step opens with owners within the rooms, and not beyond them;
and at every end: all steps are done, or the model is torn, or nobody is attached, or the rooms add up to less than the
parts. Then a worker is given room for all, and must finish what is left.
"""
import os
import random
import sys
import time
from collections import namedtuple

sys.dont_write_bytecode = True
if len(sys.argv) < 2:
    sys.exit(__doc__)

import generate

relay, check_relay = generate.load_both(sys.argv[1])
from check_relay import Violation, check

# rooms: of each worker, and of those that attach later one of `later`. changes: at most so many rooms change.
# A further fault: leave, a worker is told to.
Setting = namedtuple('Setting', check_relay.Setting._fields + ('rooms', 'later', 'changes'),
                                 defaults=((), 2, 0, 2, (), 1, 0, 0, True, (), (), 0))
Roomed = generate.roomed(relay.Relay)


class World(check_relay.World):
    n_waits = 0                         # ends of the search at which the step, or the next one, waits for room

    def __init__(self, setting, relay_class=Roomed):
        self.rooms = dict(enumerate(setting.rooms))     # of the attached
        self.leaving = frozenset()
        self.changes = setting.changes
        super().__init__(setting, relay_class)

    def copy(self):
        n = super().copy()
        n.rooms = dict(self.rooms)
        n.relay.room = dict(self.relay.room)
        return n

    def key(self):
        return hash((super().key(), tuple(sorted(self.rooms.items())), tuple(sorted(self.relay.room.items())), self.leaving,
                     self.changes))

    # ---- what should be ---------------------------------------------------------------------------------------

    def load(self, w):
        return sum(o == w and self.relay.is_unfinished(p) for p, o in enumerate(self.relay.owner))

    def n_waiting(self):
        return self.load(None)

    def is_short(self):
        """Some of what is left waits for room."""
        return self.done < self.setting.steps and sum(self.rooms.values()) < self.setting.config.parts

    def may_retire(self, w):
        """It has nothing of the step; or another can redo what it has, and the step waits for a worker anyway."""
        r = self.relay
        mine = [p for p, o in enumerate(r.owner) if o == w and r.is_unfinished(p)]
        return not mine or (self.n_waiting() and all(map(r.can_redo, mine)))

    def feed(self, *event, stale=False):
        if event[0] == 'attached':
            event += (self.rooms[event[1]],)
        r = self.relay
        before = r.t, list(r.owner)
        super().feed(*event, stale=stale)
        if before[0] == r.t:
            for p, (old, new) in enumerate(zip(before[1], r.owner)):
                check(old in (None, new) or old not in r.inbox, 'part %d is taken from worker %s' % (p, old))

    def obey(self, action, event, stale):
        if action[0] == 'refuse' and action[2] == 'not finite' and action[1] in self.relay.inbox:
            return                      # the part's second such attempt: the step is given up, and nobody is lost
        super().obey(action, event, stale)
        if action[0] == 'share':
            w = action[1]
            n, room = self.load(w), self.rooms[w]
            check(n <= room, 'worker %d has %d parts, and room for %d' % (w, n, room))
        elif action[0] == 'skipped':
            check(self.bad, 'skipped, but all was finite')

    def invariants(self):
        super().invariants()
        if self.n_waiting() and not self.relay.torn:
            for w, room in self.rooms.items():
                check(self.load(w) >= room, 'a part waits, and worker %d has room' % w)

    def detach(self, w):
        super().detach(w)
        self.rooms.pop(w)
        self.leaving -= {w}

    # ---- moves ------------------------------------------------------------------------------------------------

    def moves(self):
        go, may = super().moves()
        if self.torn:
            return go, may
        alive = sorted(self.rooms)
        if sum(self.rooms.values()) < self.setting.config.parts:
            go = [m for m in go if m != ('open',)]

        def with_room(moves):
            joins = ('attach', 'back')
            return [x for m in moves for x in ([m + (n,) for n in self.setting.later] if m[0] in joins else [m])]
        go, may = with_room(go), with_room(may)
        go += [('retire', w) for w in alive if w in self.leaving and self.may_retire(w)]
        if self.relay.t >= 0:
            stay = [w for w in alive if w not in self.leaving]
            if self.changes:
                change = [('room', w, n) for w in stay for n in range(self.setting.config.parts + 1) if n != self.rooms[w]]
                if go or not self.is_short():
                    may += change
                else:
                    go += [m for m in change if m[2] > self.rooms[m[1]]]
            if self.faults and 'leave' in self.setting.faults:
                may += [('leave', w) for w in stay]
        return go, may

    def move(self, m):
        what = m[0]
        if what == 'open':
            self.open()
        elif what == 'room':
            self.changes -= 1
            self.change_room(*m[1:])
        elif what == 'leave':
            self.faults -= 1
            self.leaving |= {m[1]}
            self.change_room(m[1], 0)
        elif what == 'retire':
            self.detach(m[1])
            super().feed('lost', m[1])
        elif what in ('attach', 'back'):
            w = self.asleep if what == 'back' else self.setting.workers + self.setting.late - self.late
            self.rooms[w] = m[1]
            super().move((what,))
        else:
            super().move(m)

    def change_room(self, w, room):
        self.rooms[w] = room
        self.feed('room', w, room)

    def open(self):
        """Evenly, as far as there is room."""
        s, r = self.setting, self.relay
        self.open_too_much()
        owners = []
        for _ in range(s.config.parts):
            able = [w for w, room in self.rooms.items() if owners.count(w) < room]
            owners.append(min(able, key=lambda w: (owners.count(w), w)))
        t = r.t + 1
        self.feed('open', t, s.visits, s.frozen, tuple(sorted(owners)))
        check(r.t == t, 'an open within the rooms is refused')

    def open_too_much(self):
        """All parts for one worker, wherever that is beyond its room."""
        s, r = self.setting, self.relay
        for w, room in self.rooms.items():
            if room < s.config.parts:
                twin = check_relay.copy_relay(r)
                actions = twin.feed(('open', r.t + 1, s.visits, s.frozen, (w,) * s.config.parts))
                check([a[:2] for a in actions] == [('refuse', 'client')] and twin.t == r.t, 'a step opens beyond the rooms')

    def final(self):
        if self.torn or not self.rooms or not self.is_short():
            return super().final()
        World.n_waits += 1
        if self.relay.covered:
            self.open_too_much()
        for w in [len(self.workers)] + sorted(set(self.rooms) - self.leaving)[:1]:
            self.copy().finish_with(w)

    def finish_with(self, w):
        """A worker gets room for all parts, and nothing else happens from now on: all is done in the end."""
        parts = self.setting.config.parts
        self.trace = None
        if w == len(self.workers):
            self.workers.append(check_relay.Worker(self.setting.config.slots))
            self.workers[w].attached = True
            self.rooms[w] = parts
            self.feed('attached', w)
        else:
            self.change_room(w, parts)
        for _ in range(10000):
            go, _ = self.moves()
            if not go:
                break
            self.move(go[0])
        check(not self.torn and not self.is_short(), 'room for all does not help')
        super().final()


check_relay.World = World               # explore() and walk() make one, and so does copy()


def settings():
    """Small ones, searched exhaustively."""
    S, C = Setting, relay.Config
    every = ('kill', 'stop', 'bad', 'badloss', 'leave')
    U1, U2, U3, tied = (0,), (0, 1), (0, 1, 2), (0, 1, 0)
    c1, c2 = C(1, 1, 1, 1), C(2, 1, 1, 1)
    out = [S('1 worker, 1 part', c1, U2, workers=1, late=1, steps=2, faults=every, n_faults=2, rooms=(1,), later=(1,),
             changes=2),
           S('3 workers, 1 part', c1, U2, workers=3, steps=2, faults=('kill', 'leave'), n_faults=2, rooms=(1, 1, 0),
             changes=1),
           S('1 worker, 2 parts, then another', c2, U2, workers=1, late=1, steps=2, faults=('kill', 'leave'), n_faults=1,
             rooms=(2,), later=(1, 2), changes=1)]
    for optimizer, det in (('adama', False), ('adama', True), ('adamw', False), ('adamw', True)):
        c = c2._replace(optimizer=optimizer, deterministic=det)
        tag = optimizer + (' det' if det else '')
        out.append(S(tag + ', every fault', c, U2, faults=every + ('dup',), steps=1, n_faults=1, rooms=(1, 1), later=(1, 2),
                     changes=1))
        out.append(S(tag + ', 2 slots, room changes', c._replace(slots=2), U2, steps=1, rooms=(1, 1), changes=3))
        out.append(S(tag + ', one attaches, 2 steps', c, U1, late=1, steps=2, faults=('kill', 'leave'), n_faults=1,
                     rooms=(1, 1), later=(1, 2), changes=1))
        out.append(S(tag + ', no replay', c._replace(replay=False), U2, steps=1, faults=every, n_faults=1, rooms=(1, 2),
                     later=(1, 2), changes=1))
        out.append(S(tag + ', 3 units, 1 accumulator', c, U3, steps=1, faults=('kill', 'leave'), n_faults=1, rooms=(1, 1),
                     changes=1))
        out.append(S(tag + ', tied', c, tied, steps=1, faults=('kill',), n_faults=1, rooms=(1, 2), changes=1))
    f = C(2, 1, 1, 1, 'adamw', 'fenced')
    for tag, c in ('fenced', f), ('fenced det, no replay', f._replace(deterministic=True, replay=False)):
        out.append(S(tag + ', every fault', c, U2, steps=1, faults=every, n_faults=1, rooms=(1, 1), later=(1, 2),
                     changes=1))
        out.append(S(tag + ', 2 steps', c, U1, late=1, steps=2, faults=('kill', 'bad', 'leave'), n_faults=1, rooms=(1, 1),
                     later=(1,), changes=1))
    out.append(S('adama det, 3 workers, 2 leave', c2._replace(deterministic=True), U1, workers=3, steps=1,
                 faults=('kill', 'stop', 'leave'), n_faults=2, rooms=(1, 1, 1), later=(1,), changes=1))
    out.append(S('adama, save', c2, U2, steps=1, faults=('kill', 'leave'), n_faults=1, saves=1, rooms=(1, 1), changes=1))
    out.append(S('adama, bad numbers twice', c1, U1, workers=3, steps=2, faults=('bad', 'kill'), n_faults=3,
                 rooms=(1, 1, 1), changes=1))
    out.append(S('adama, messages under way', c2, U1, steps=1, faults=every + ('resume',), n_faults=1, queue=1,
                 coarse=False, rooms=(1, 1), later=(1,), changes=1))
    out.append(S('adama, 3 parts', C(3, 1, 1, 1), U1, steps=1, faults=('kill', 'leave'), n_faults=1, rooms=(2, 2),
                 changes=1))
    return out


def big(seed):
    """A larger setting for a random walk."""
    rng = random.Random(seed)
    s = check_relay.big(seed)
    parts = s.config.parts
    faults = s.faults + ('leave',) * 2
    return Setting(*s._replace(faults=faults), tuple(rng.randint(1, parts) for _ in range(s.workers)),
                   tuple(sorted({1, parts, rng.randint(1, parts)})), rng.randint(0, 8))


# ---- runs -----------------------------------------------------------------------------------------------------------

def run_settings():
    """Prints a line for each. How many failed."""
    total, t_all, failed = [0] * 6, time.time(), 0
    print('%-40s %8s %9s %6s %6s %6s %6s %6s %6s' %
          ('setting', 'states', 'moves', 'ends', 'torn', 'skip', 'saved', 'wait', 's'))
    for s in settings():
        t0, World.n_waits = time.time(), 0
        try:
            counts = check_relay.explore(s, Roomed)
        except Violation as v:
            print('%-40s FAILED: %s' % (s.name, v), flush=True)
            failed += 1
            continue
        total = [a + b for a, b in zip(total, counts)]
        print('%-40s %8d %9d %6d %6d %6d %6d %6d %6.1f' % (s.name, *counts, World.n_waits, time.time() - t0), flush=True)
    print('%d settings: %d states, %d moves, %d ends; %d failed; %.0f s' %
          (len(settings()), *total[:3], failed, time.time() - t_all), flush=True)
    return failed


def run_walks(n):
    counts, t0, World.n_waits = [0] * 4, time.time(), 0
    for seed in range(n):
        try:
            moves, _, world = check_relay.walk(big(seed), seed, Roomed)
        except Violation as v:
            print('walk %d FAILED: %s' % (seed, v))
            return 1
        counts = [a + b for a, b in zip(counts, (moves, world.torn, bool(world.skipped), world.saved == 1))]
    print('%d walks of %d moves: %d torn, %d with a skipped step, %d saved, %d end short of room; 0 failed; %.0f s' %
          (n, *counts, World.n_waits, time.time() - t0))
    return 0


def find_mutant(mutant):
    """(setting, moves, what was wrong), or None."""
    for s in sorted(settings(), key=lambda s: (s.steps, len(s.visits), s.n_faults)):
        try:
            check_relay.explore(s, mutant)
        except Violation as v:
            what, path = str(v).split('; after: ')
            return s.name, path.count(' | ') + 1, what
    return None


def run_mutants():
    missed = 0
    for mutant in generate.room_mutants(relay):
        found = find_mutant(mutant)
        missed += not found
        how = 'in "%s", after %d moves: %s' % found if found else 'MISSED'
        print('%-13s %-67s %s' % (mutant.__name__, mutant.__doc__, how), flush=True)
    return missed


def main():
    options = sys.argv[2:]
    if options == ['--mutants']:
        sys.exit(run_mutants() > 0)
    if options[:1] == ['--walks'] and len(options) == 2:
        sys.exit(run_walks(int(options[1])))
    if options:
        sys.exit(__doc__)
    sys.exit(run_settings() + run_walks(2000) > 0)


if __name__ == '__main__':
    main()
