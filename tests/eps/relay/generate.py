"""generate.py - traces of the relay's specification, relay.py, for compare.py: events, and under each its actions.

Three kinds, each the same for the same seed:
  walks   a world of decent workers with faults (search.py walks through it at random)
  chaos   events without a world behind them: mostly possible, often late, doubled, misnamed; steps that differ in their
          units, visits, frozen ones and slices; several readers
  rooms   chaos of workers that have room for few parts
"""
import random

import relay
import search

KINDS = 'walks', 'chaos', 'rooms'


class Chaos:
    """Looks into the relay for what would be possible next, and mostly does that."""
    def __init__(self, seed, narrow):
        self.rng = rng = random.Random(seed)
        commit = rng.choice(('eager', 'eager', 'fenced', 'folded'))
        parts = rng.randint(1, 3)
        self.config = relay.Config(parts, 1, rng.randint(1, 3), rng.randint(1, 2),
                                   search.optimizer_for(commit, parts, rng), commit, rng.random() < 0.5,
                                   rng.random() < 0.6, commit != 'eager' and rng.random() < 0.6)
        self.relay = relay.Relay(self.config)
        self.crowd = rng.choice((2, 2, 4))                # workers that are attached early
        self.narrow = narrow                              # workers have room for few parts
        self.past = []
        self.bad = rng.choice((0.01, 0.01, 0.15))         # how often numbers are not finite
        self.damage = rng.choice((0, 0.1, 0.4) if narrow else (0, 0.03, 0.1)) # how often they change in their slots
        self.wrong = rng.choice((0, 0.05, 0.2))           # how often digests are
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
        if len(r.inbox) < self.crowd and x < (0.2 if self.narrow and r.inbox else 0.5):
            return self.attached()
        if r.covered and r.inbox and x < 0.4:
            return self.open()
        if x < 0.02:
            return rng.choice((self.attached(), self.open()))
        if x < 0.5 and (r.auditing or r.referee is not None) and not r.covered and rng.random() < 0.4:
            return self.audit()
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
            return r.jobs and ('folded', *rng.choice(sorted(r.jobs)), self.verdict())
        if x < 0.72:
            return r.updating and ('updated', rng.choice(sorted(r.updating)))
        return self.contribution()

    def verdict(self):
        x = self.rng.random()
        return 'bad' if x < self.bad else 'damaged' if x < self.bad + self.damage else 'ok'

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
        audit = (((rng.randrange(self.config.parts + (rng.random() < 0.02)), rng.choice(workers or [0])),),)
        return ('open', r.t + (1 if rng.random() < 0.95 else rng.randrange(3)), visits, frozen,
                self.owners(workers, parts), tuple(of_unit[u] for u in visits)) + audit * (rng.random() < 0.4)

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
            return 'pull', rng.randrange(6), max(0, r.t + rng.choice((0, 1, -1, 2))), rng.randrange(6)
        if rng.random() < 0.15:                           # late
            return 'pull', rng.choice(sorted(r.inbox)), max(0, r.t - rng.randrange(3)), rng.choice(sorted(r.version))
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

    def digest(self):
        return 0 if self.rng.random() >= self.wrong else self.rng.choice((1, 1, 2))

    def audit(self):
        r, rng = self.relay, self.rng
        if rng.random() < 0.02:
            return 'unaudit', self.spoil(r.audits, 6)
        names = [n for n in r.names if n[1] == r.audited and n not in r.digests] or list(r.names)
        v, p, s = names[0] if rng.random() < 0.9 else rng.choice(names)
        third = r.referee is not None and rng.random() < 0.7
        if third:
            names = [n for n in r.names if n[1] == r.audited and n not in r.theirs] or list(r.names)
            v, p, s = names[0] if rng.random() < 0.9 else rng.choice(names)
        return ('digest', self.spoil(r.referee if third else r.audits, 6), self.spoil(r.t, r.t + 2), self.spoil(v, 5), self.spoil(p, 4),
                self.spoil(s, 3), self.digest())

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
                self.spoil(s, 3), self.spoil(r.attempt[p], 3), k) + (self.digest(),) * (p == r.audited)


def trace(kind, seed):
    """Lines of one trace."""
    if kind == 'walks':
        return search.walk(search.big(seed), seed, trace=True)[1]
    world = Chaos(seed, kind == 'rooms')
    lines = [relay.config_to_text(world.config)]
    for event in world.events(world.rng.randint(80, 260)):
        lines.append(relay.to_text(event))
        lines += ['  ' + relay.to_text(a) for a in world.relay.feed(event)]
    return lines
