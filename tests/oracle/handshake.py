#!/usr/bin/env python3
"""Writes tests/fixtures/net/handshake.json: a handshake of proto/net/handshake.h and frames of proto/net/cipher.h, in plain
Python. X25519 is RFC 7748's, ChaCha20 and Poly1305 RFC 8439's, AES FIPS 197's, GCM SP 800-38D's; each is first held to an
example of its document. BLAKE2b is hashlib's.

usage: tests/oracle/handshake.py >tests/fixtures/net/handshake.json
"""
import hashlib
import struct

import fixture

P = 2**255 - 19


def x25519(k, u):
    k = bytearray(k)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    k = int.from_bytes(k, "little")
    u = int.from_bytes(u, "little") & (2**255 - 1)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        e = aa - bb
        x3, z3 = pow(da + cb, 2, P), u * pow(da - cb, 2, P) % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


BASE = (9).to_bytes(32, "little")


def chacha_block(key, counter, nonce):
    state = list(struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
    work = list(state)

    def quarter(a, b, c, d):
        for x, y, z, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            work[x] = work[x] + work[y] & 0xFFFFFFFF
            v = work[z] ^ work[x]
            work[z] = (v << n | v >> 32 - n) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, work)))


def xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b))


def chacha(key, counter, nonce, text):
    stream = b"".join(chacha_block(key, counter + i, nonce) for i in range(len(text) // 64 + 1))
    return xor(text, stream)


def poly1305(key, text):
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    a = 0
    for i in range(0, len(text), 16):
        a = (a + int.from_bytes(text[i : i + 16] + b"\1", "little")) * r % (2**130 - 5)
    return (a + int.from_bytes(key[16:], "little") & (1 << 128) - 1).to_bytes(16, "little")


def pad(text):
    return text + bytes(-len(text) % 16)


def chacha_seal(key, nonce, text, data):
    coded = chacha(key, 1, nonce, text)
    one_time = chacha_block(key, 0, nonce)[:32]
    return coded + poly1305(one_time, pad(data) + pad(coded) + struct.pack("<QQ", len(data), len(coded)))


def aes_tables():
    p = q = 1
    sbox = [0x63] * 256
    while True:
        p ^= p << 1 & 0xFF ^ (0x1B if p & 0x80 else 0)
        for n in (1, 2, 4):
            q ^= q << n & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        turned = q
        for n in (1, 2, 3, 4):
            turned ^= (q << n | q >> 8 - n) & 0xFF
        sbox[p] = turned ^ 0x63
        if p == 1:
            return sbox


SBOX = aes_tables()


def aes256(key, block):
    words = [list(key[i : i + 4]) for i in range(0, 32, 4)]
    rcon = 1
    for i in range(8, 60):
        w = list(words[-1])
        if i % 8 == 0:
            w = [SBOX[b] for b in w[1:] + w[:1]]
            w[0] ^= rcon
            rcon = rcon << 1 ^ (0x11B if rcon & 0x80 else 0)
        elif i % 8 == 4:
            w = [SBOX[b] for b in w]
        words.append([a ^ b for a, b in zip(words[i - 8], w)])
    rounds = [bytes(sum(words[4 * r : 4 * r + 4], [])) for r in range(15)]

    def double(b):
        return b << 1 & 0xFF ^ (0x1B if b & 0x80 else 0)

    s = list(xor(block, rounds[0]))
    for r in range(1, 15):
        s = [SBOX[s[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if r < 14:
            mixed = []
            for c in range(0, 16, 4):
                a = s[c : c + 4]
                mixed += [double(a[i]) ^ double(a[(i + 1) % 4]) ^ a[(i + 1) % 4] ^ a[(i + 2) % 4] ^ a[(i + 3) % 4]
                          for i in range(4)]
            s = mixed
        s = list(xor(s, rounds[r]))
    return bytes(s)


def gcm_seal(key, nonce, text, data):
    h = int.from_bytes(aes256(key, bytes(16)), "big")

    def times(x):
        z, v = 0, h
        for i in reversed(range(128)):
            if x >> i & 1:
                z ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        return z

    coded = b""
    for i in range(0, len(text), 16):
        coded += xor(text[i : i + 16], aes256(key, nonce + struct.pack(">I", 2 + i // 16)))
    y = 0
    whole = pad(data) + pad(coded) + struct.pack(">QQ", 8 * len(data), 8 * len(coded))
    for i in range(0, len(whole), 16):
        y = times(y ^ int.from_bytes(whole[i : i + 16], "big"))
    return coded + xor(y.to_bytes(16, "big"), aes256(key, nonce + struct.pack(">I", 1)))


def check():
    """Examples of the documents."""
    h = bytes.fromhex
    assert x25519(
        h("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
        h("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
    ) == h("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    sealed = chacha_seal(
        h("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"),
        h("070000004041424344454647"),
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would "
        b"be it.",
        h("50515253c0c1c2c3c4c5c6c7"),
    )
    assert sealed[-16:] == h("1ae10b594f09e26a7e902ecbd0600691")
    assert aes256(bytes(range(32)), h("00112233445566778899aabbccddeeff")) == h("8ea2b7ca516745bfeafc49904b496089")
    assert gcm_seal(bytes(32), bytes(12), bytes(16), b"") == h(
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    )


MAGIC, VERSION, DAEMON, WORKER, CONTROL, BULK, AES = 0x7E951, 1, 1, 2, 1, 2, 1


def hello(role, channel, flags, session, public):
    return struct.pack("<IBBBBQ", MAGIC, VERSION, role, channel, flags, session) + bytes(16) + public


def handshake(channel, session, psk, caller, answerer):
    hellos = [hello(WORKER, channel, AES, session, x25519(caller, BASE)),
              hello(DAEMON, channel, AES, session, x25519(answerer, BASE))]
    both = hellos[0] + hellos[1]
    shared = x25519(caller, x25519(answerer, BASE))
    root = hashlib.blake2b(shared + both, key=psk, digest_size=64).digest()

    def subkey(purpose, direction):
        return hashlib.blake2b(purpose + bytes([direction, channel]), key=root, digest_size=32).digest()

    def proof(direction, purpose=b"eps proof"):
        return hashlib.blake2b(both, key=subkey(purpose, direction), digest_size=32).digest()

    return {
        "channel": channel, "session": session, "key": psk.hex(), "caller": caller.hex(), "answerer": answerer.hex(),
        "hellos": [x.hex() for x in hellos], "proofs": [proof(0).hex(), proof(1).hex()],
        "refusal": proof(1, b"eps full").hex(),
        "frames": [subkey(b"eps frame", 0).hex(), subkey(b"eps frame", 1).hex()],
        "child": subkey(b"eps child", 0).hex(), "name": subkey(b"eps name", 0)[:8].hex(),
    }


def frames():
    key = hashlib.sha256(b"a frame's key").digest()
    out = []
    for n in (0, 1, 5, 16, 100):
        number = 2**32 + n
        nonce, header = struct.pack("<IQ", 0, number), struct.pack("<I", n)
        text = bytes((7 * i + n) % 256 for i in range(n))
        out.append({
            "n": n, "number": number, "key": key.hex(), "payload": text.hex(),
            "sealed": [(header + chacha_seal(key, nonce, text, header)).hex(),
                       (header + gcm_seal(key, nonce, text, header)).hex(),
                       (header + text + poly1305(chacha_block(key, 0, nonce)[:32], header + text)).hex()],
        })
    return out


def main():
    check()
    seeds = [hashlib.sha256(b"seed %d" % i).digest() for i in range(5)]
    control = handshake(CONTROL, 0, seeds[0], seeds[1], seeds[2])
    bulk = handshake(BULK, 0x0123456789ABCDEF, bytes.fromhex(control["child"]), seeds[3], seeds[4])
    print(fixture.text({"handshakes": [control, bulk], "frames": frames()}))


main()
