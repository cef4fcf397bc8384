#!/usr/bin/env python3
"""generate.py RELAY_PY [FOLDER] - writes the traces that test_relay replays, from the relay's executable specification.

Three kinds, each event with the actions that the specification gives:
  walks   a world of decent workers with faults (check_relay.py, beside relay.py, walks through it at random)
  chaos   events without a world behind them: mostly possible, often stale, doubled, misnamed; steps that differ in
          their units, visits, frozen ones and slices; several readers
  rooms   chaos of workers that have room for few parts, which the specification's have not: see roomed()
The walks are the shortest of each sort of setting, so that all sorts are there in little text. Then every mutant of
check_relay.py, and a few more, are fed the events, to show that the traces tell them from the specification.
"""
import os
import random
import sys

FILES, PER_FILE = (('walks', 6), ('chaos', 3), ('rooms', 1)), 40


def load_both(relay_py):
    """(relay, check_relay)"""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(relay_py)))
    import check_relay
    import relay
    return relay, check_relay


def sliced(relay_class):
    """Lets the visits differ in their slices: a further column of open."""
    class Sliced(relay_class):
        def on_open(self, t, visits, frozen, owners, slices=None):
            before = self.t
            super().on_open(t, visits, frozen, owners)
            if self.t != before and slices:
                self.names = tuple((v, p, s) for v in reversed(range(len(visits))) if visits[v] not in frozen
                                   for p in range(self.config.parts) for s in range(slices[v]))
    return Sliced


def roomed(relay_class):
    """Gives workers room for a number of unfinished parts: a second column of attached, and an event

        room W N     membership: worker W may have N unfinished parts from now on; 0: it finishes those that it has

    A part goes to a worker with room, or waits until one has room: it attaches, its room grows, or it has finished a part
    of its own. A step is opened within the rooms."""
    class Roomed(relay_class):
        def on_attached(self, w, room=None):
            rooms = self.__dict__.setdefault('room', {})
            if w not in self.inbox:
                rooms[w] = 1 << 32 if room is None else room
            super().on_attached(w)

        def on_room(self, w, room):
            if w in self.inbox:
                self.room[w] = room

        def on_open(self, t, visits, frozen, owners, *more):
            over = any(owners.count(w) > self.room[w] for w in self.inbox)
            whole = len(owners) == self.config.parts and all(w in self.inbox for w in owners)
            if t == self.t + 1 and self.covered and whole and over:
                return self.refuse('client', 'more parts than a worker has room for')
            super().on_open(t, visits, frozen, owners, *more)

        def load(self, w):
            return sum(o == w and self.is_unfinished(p) for p, o in enumerate(self.owner))

        def able(self):
            return [w for w in self.inbox if self.load(w) < self.room[w]]

        def place(self):
            moved = {}
            for p, owner in enumerate(self.owner):
                if owner is not None or not self.is_unfinished(p):
                    continue
                if not self.can_redo(p):
                    return self.give_up()
                able = self.able()
                if able:
                    w = min(able, key=lambda w: (self.load(w), w))
                    self.owner[p] = w
                    self.attempt[p] += 1
                    moved.setdefault(w, []).append((p, self.attempt[p]))
            for w in sorted(moved):
                self.act('share', w, self.t, tuple(moved[w]))

        def grant(self):
            self.place()                                  # a room grew, or folds just given out finish a worker's part
            super().grant()
    return Roomed


class Chaos:
    """Looks into the relay for what would be possible next, and mostly does that."""
    def __init__(self, relay, seed, narrow):
        self.rng = rng = random.Random(seed)
        fenced = rng.random() < 0.3
        parts = rng.randint(1, 3)
        self.config = relay.Config(parts, 1, rng.randint(1, 3), rng.randint(1, 2),
                                   'adamw' if fenced and parts > 1 else rng.choice(('adama', 'adamw')),
                                   'fenced' if fenced else 'eager', rng.random() < 0.5, rng.random() < 0.6)
        self.relay = roomed(sliced(relay.Relay))(self.config)
        self.narrow = narrow                              # workers have room for few parts
        self.past = []
        self.bad = rng.choice((0.01, 0.01, 0.15))         # how often numbers are not finite
        self.order = rng.choice((0.1, 0.4))               # how much of fold order there is in the contributions

    def events(self, n):
        for _ in range(n):
            event = self.next()
            if event:
                self.past.append(event)
                yield event
                if self.relay.torn and self.rng.random() < 0.2:
                    return

    def next(self):
        r, rng = self.relay, self.rng
        x = rng.random()
        if len(r.inbox) < 2 and x < (0.2 if self.narrow and r.inbox else 0.5):
            return self.attached()
        if r.covered and r.inbox and x < 0.4:
            return self.open()
        if x < 0.02:
            return rng.choice((self.attached(), self.open()))
        if x < (0.06 if self.narrow else 0.03):
            return 'lost', rng.randrange(6)
        if self.narrow and x < (0.4 if None in r.owner and r.inbox else 0.08):
            return 'room', rng.choice(sorted(r.inbox) or [0]), rng.randint(0, self.config.parts)
        if x < 0.06:
            return rng.choice((('save', rng.randrange(3)), ('released', rng.randrange(4), rng.randrange(6))))
        if x < 0.12:
            captured = [(i, u) for i, (_, _, c) in sorted(r.readers.items()) for u in sorted(c)]
            return captured and ('released', *rng.choice(captured))
        if x < 0.14 and self.past:
            event = rng.choice(self.past[-40:])
            return None if event[0] in ('folded', 'updated') else event
        if x < 0.22:
            return self.pull()
        if x < 0.40 and not all(r.loss):
            return self.loss()
        if x < 0.65:
            return r.jobs and ('folded', *rng.choice(sorted(r.jobs)), 'bad' if rng.random() < self.bad else 'ok')
        if x < 0.72:
            return r.updating and ('updated', rng.choice(sorted(r.updating)))
        return self.contribution()

    def attached(self):
        w = self.rng.randrange(6)
        return ('attached', w, self.rng.randint(1, self.config.parts)) if self.narrow else ('attached', w)

    def open(self):
        r, rng = self.relay, self.rng
        visits = r.visits
        if rng.random() < 0.4 or not visits:
            visits = tuple(rng.sample(range(5), rng.randint(1, 4)))
            if rng.random() < 0.4:
                visits += rng.choice(visits),
        known = sorted(set(visits) | (set(r.version) if rng.random() < 0.1 else set()))
        frozen = tuple(u for u in known if rng.random() < 0.15)
        workers = sorted(r.inbox) if rng.random() < 0.95 else list(range(6))
        parts = self.config.parts + (rng.random() < 0.02)
        of_unit = {u: rng.randint(1, 2) for u in visits}
        return ('open', r.t + (1 if rng.random() < 0.95 else rng.randrange(3)), visits, frozen,
                self.owners(workers, parts), tuple(of_unit[u] for u in visits))

    def owners(self, workers, parts):
        r, rng = self.relay, self.rng
        if not self.narrow:
            return tuple(rng.choice(workers or [0]) for _ in range(parts))
        owners = []
        for _ in range(parts):
            able = [w for w in workers if owners.count(w) < r.room.get(w, 0) or rng.random() < 0.05]
            owners.append(rng.choice(able or workers or [0]))
        return tuple(owners)

    def spoil(self, x, top):
        return x if self.rng.random() < 0.97 else self.rng.randrange(top)

    def pull(self):
        r, rng = self.relay, self.rng
        if rng.random() < 0.05 or not r.inbox or not r.visits:
            return 'pull', rng.randrange(6), r.t + rng.choice((0, 1, -1, 2)), rng.randrange(6)
        return 'pull', rng.choice(sorted(r.inbox)), r.t + rng.randrange(2), rng.choice(r.visits)

    def loss(self):
        r, rng = self.relay, self.rng
        if not r.owner or r.tail is not None and rng.random() < 0.9:
            return None
        open_parts = [p for p in range(len(r.owner)) if not r.loss[p]]
        if not open_parts and rng.random() < 0.8:
            return None
        p = rng.choice(open_parts or range(len(r.owner)))
        w = rng.randrange(6) if r.owner[p] is None else r.owner[p]
        return ('loss', self.spoil(w, 6), self.spoil(r.t, r.t + 2), self.spoil(p, 4), self.spoil(r.attempt[p], 3),
                'bad' if rng.random() < self.bad / 2 else 'ok')

    def contribution(self):
        r, rng = self.relay, self.rng
        todo = [n for n in r.names if n not in r.folded]
        if not r.names or r.covered and rng.random() < 0.9:
            return None
        v, p, s = rng.choice(r.names) if rng.random() < 0.05 or not todo else \
            todo[min(int(rng.expovariate(self.order)), len(todo) - 1)]
        if not r.loss[p] and rng.random() < 0.9:
            return None
        w = rng.randrange(6) if r.owner[p] is None else r.owner[p]
        free = [k for k, cell in enumerate(r.inbox.get(w, [])) if k and not cell]
        k = rng.choice(free) if free and rng.random() < 0.93 else rng.choice((0, 0, 0, 1, 2, 4))
        return ('contribution', self.spoil(w, 6), self.spoil(r.t, r.t + 2), self.spoil(v, 5), self.spoil(p, 4),
                self.spoil(s, 3), self.spoil(r.attempt[p], 3), k)


def chaos(relay, seed, narrow=False):
    """Lines of one trace."""
    world = Chaos(relay, seed, narrow)
    lines = [relay.config_to_text(world.config)]
    for event in world.events(world.rng.randint(80, 260)):
        lines.append(relay.to_text(event))
        lines += ['  ' + relay.to_text(a) for a in world.relay.feed(event)]
    return lines


def more_mutants(relay):
    """Rules that check_relay.py's own mutants leave whole."""
    class Patient(relay.Relay):
        """gives up at the third fault"""
        def fault(self, w, p):
            self.faults[p] -= 0.5
            super().fault(w, p)

    class Careless(relay.Relay):
        """frees at a skip what the thread reads"""
        def give_up(self):
            kept = dict(self.jobs)
            if self.config.commit == 'fenced':
                self.jobs = {}
            super().give_up()
            self.jobs = kept
    return [Patient, Careless]


def room_mutants(relay):
    """Rules of roomed() broken, one in each."""
    whole = roomed(sliced(relay.Relay))

    class Roomless(whole):
        """gives parts to workers without room"""
        def able(self):
            return list(self.inbox)

    class Unleaving(whole):
        """gives parts to a worker that is leaving, with room 0"""
        def able(self):
            return [w for w in self.inbox if not self.room[w] or self.load(w) < self.room[w]]

    class Shortsighted(whole):
        """lets a part wait if the worker with the least to do has no room"""
        def able(self):
            least = min(self.inbox, key=lambda w: (self.load(w), w), default=None)
            return [w for w in super().able() if w == least]

    class Recount(whole):
        """counts loads once for all parts that it places"""
        def place(self):
            self.counted = {w: super(Recount, self).load(w) for w in self.inbox}
            super().place()

        def load(self, w):
            return self.counted[w]

    class Owned(whole):
        """counts parts that a worker has finished"""
        def load(self, w):
            return self.owner.count(w)

    class Folded(whole):
        """counts parts until all is folded, with the thread or not"""
        def load(self, w):
            left = {n[1] for n in self.names if n not in self.folded}
            return sum(o == w and p in left for p, o in enumerate(self.owner))

    class Forgetful(whole):
        """places nothing when a room grows"""
        def feed(self, event):
            self.grows = event[0] == 'room'
            return super().feed(event)

        def grant(self):
            (relay.Relay.grant if self.grows else whole.grant)(self)

    class Idle(whole):
        """places nothing when a worker has finished a part"""
        def feed(self, event):
            self.grows = event[0] == 'room'
            return super().feed(event)

        def grant(self):
            (whole.grant if self.grows else relay.Relay.grant)(self)

    class Sticky(whole):
        """takes a worker that attaches anew for one with the room that it had"""
        def on_attached(self, w, room=None):
            super().on_attached(w, self.__dict__.get('room', {}).get(w, room))

    class Hasty(whole):
        """places parts before it knows the room of who attaches"""
        def on_attached(self, w, room=None):
            super().on_attached(w)
            self.room[w] = 1 << 32 if room is None else room

    class Evicting(whole):
        """takes parts from a worker whose room shrinks"""
        def on_room(self, w, room):
            for p, owner in enumerate(self.owner):
                if owner == w and self.load(w) > room:
                    self.owner[p] = None
            super().on_room(w, room)

    class Despairing(whole):
        """gives the step up where a part has to wait"""
        def place(self):
            super().place()
            if self.inbox and any(o is None and self.is_unfinished(p) for p, o in enumerate(self.owner)):
                self.give_up()

    class Wide(whole):
        """opens a step beyond the rooms"""
        def on_open(self, *x):
            kept, self.room = self.room, dict.fromkeys(self.room, 1 << 32)
            super().on_open(*x)
            self.room = kept

    class Narrow(whole):
        """refuses to open a step that fills a room"""
        def on_open(self, t, visits, frozen, owners, *more):
            kept, self.room = self.room, {w: n - 1 for w, n in self.room.items()}
            super().on_open(t, visits, frozen, owners, *more)
            self.room = kept

    return [Roomless, Unleaving, Shortsighted, Recount, Owned, Folded, Forgetful, Idle, Sticky, Hasty, Evicting, Despairing,
            Wide, Narrow]


def walk(check_relay, seed):
    return check_relay.walk(check_relay.big(seed), seed, trace=True)[1]


def select_walks(check_relay, n):
    """The shortest that are not too short, as many of each sort."""
    sorts = {}
    for seed in range(n * 12):
        c = check_relay.big(seed).config
        sorts.setdefault((c.optimizer, c.commit, c.deterministic, c.replay, c.parts > 1), []).append(seed)
    chosen, share = [], n // len(sorts) + 1
    for _, seeds in sorted(sorts.items()):
        traces = [walk(check_relay, seed) for seed in seeds[:6 * share]]
        chosen += sorted((x for x in traces if len(x) > 100), key=len)[:share]
    random.Random(0).shuffle(chosen)
    return chosen[:n]


def parse(relay, line):
    """As the specification's from_text, with the slices of open."""
    event = relay.from_text(line)
    words = line.split()
    return event + (tuple(map(int, words[5].split(','))),) if event[0] == 'open' and len(words) > 5 else event


def differs(relay, mutant, trace):
    """Place of the first line where the mutant does something else."""
    r = (mutant if hasattr(mutant, 'able') else roomed(sliced(mutant)))(relay.config_from_text(trace[0]))
    i = 1
    while i < len(trace):
        expected = []
        event = i
        while i + 1 < len(trace) and trace[i + 1][0] == ' ':
            i += 1
            expected.append(trace[i])
        i += 1
        try:
            if ['  ' + relay.to_text(a) for a in r.feed(parse(relay, trace[event]))] != expected:
                return event
        except (KeyError, IndexError, ValueError, TypeError):
            return event
    return None


def select_chaos(relay, mutants, n, narrow=False):
    """The first ones; but the last are chosen so that at least two tell each mutant from the specification."""
    chosen, caught, seed = [], dict.fromkeys(mutants, 0), 0
    while len(chosen) < n:
        trace = chaos(relay, seed, narrow)
        missing = [m for m in mutants if caught[m] < 2]
        tells = [m for m in missing if differs(relay, m, trace) is not None]
        if len(chosen) < n - 2 * len(missing) or tells or seed > 10 * n:
            chosen.append(trace)
            for m in tells:
                caught[m] += 1
        seed += 1
    return chosen


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    relay, check_relay = load_both(sys.argv[1])
    folder = sys.argv[2] if len(sys.argv) == 3 else os.path.dirname(os.path.abspath(__file__))
    mutants = check_relay.MUTANTS + more_mutants(relay)
    traces = {'walks': select_walks(check_relay, FILES[0][1] * PER_FILE),
              'chaos': select_chaos(relay, mutants, FILES[1][1] * PER_FILE),
              'rooms': select_chaos(relay, room_mutants(relay), FILES[2][1] * PER_FILE, True)}
    mutants += room_mutants(relay)
    for kind, n in FILES:
        for i in range(n):
            with open(os.path.join(folder, '%s-%d.trace' % (kind, i)), 'w') as f:
                for trace in traces[kind][i * PER_FILE:(i + 1) * PER_FILE]:
                    f.write('\n'.join(trace) + '\n\n')
    for mutant in mutants:
        caught = [kind for kind, _ in FILES for trace in traces[kind] if differs(relay, mutant, trace) is not None]
        print('%-14s caught by %3d walks, %3d chaos, %3d rooms' %
              (mutant.__name__, *(caught.count(kind) for kind, _ in FILES)))


if __name__ == '__main__':
    main()
