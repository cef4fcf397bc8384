"""shared.py - states of a relay, which many worlds of a search share."""


def copy_relay(r):
    n = r.__class__.__new__(r.__class__)
    d = n.__dict__
    d.update(r.__dict__)
    for field in ('version', 'jobs', 'granted', 'room', 'digests', 'given', 'theirs'):
        d[field] = dict(d[field])
    for field in ('owner', 'attempt', 'loss', 'faults', 'waiting'):
        d[field] = list(d[field])
    for field in ('folded', 'updating', 'recruited'):
        d[field] = set(d[field])
    d['inbox'] = {w: list(cells) for w, cells in r.inbox.items()}
    d['readers'] = {k: (v, set(a), set(b)) for k, (v, a, b) in r.readers.items()}
    return n


def key_relay(r):
    return (r.t, tuple(sorted(r.version.items())), tuple(r.owner), tuple(r.attempt), tuple(r.loss), tuple(r.faults),
            frozenset(r.folded), tuple(sorted(r.jobs.items())), frozenset(r.updating), frozenset(r.granted.items()),
            tuple((w, tuple(c), r.room[w]) for w, c in sorted(r.inbox.items())), tuple(r.waiting), r.covered, r.tail,
            r.torn, r.audited, r.audits, r.auditing, frozenset(r.digests.items()), frozenset(r.given.items()), r.dispute, r.referee,
            frozenset(r.theirs.items()), frozenset(r.recruited),
            tuple((k, v, frozenset(a), frozenset(b)) for k, (v, a, b) in sorted(r.readers.items())))


class Shared:
    """Relays of one place in the worlds of a search. Many worlds come to the same state of a relay and feed it the same
    event: so states are kept, never changed, and each event is fed to each of them once."""
    def __init__(self, check_new=lambda r: None):
        self.check_new = check_new  # of a state that is new
        self.states, self.after = {}, {}

    def keep(self, r):
        """The one that stands for this state."""
        return self.states.setdefault(key_relay(r), r)

    def feed(self, r, event):
        """(what it is then, actions)"""
        if (r, event) not in self.after:
            n = copy_relay(r)
            actions = n.feed(event)
            self.check_new(n)
            self.after[r, event] = self.keep(n), actions
        return self.after[r, event]
