"""Images as Pillow decodes them, and as rows see them: tests/fixtures/images/.

Files of every form are written here, by Pillow or, where it cannot (16 bits in colour, interlaced), by hand; their pixels are
those of Pillow's convert("RGB"), or convert("L") of a grey one, but of 16 bits the upper eight. Rows (rows.json) are
computed in float64 by the formulas of client/images/view.h, as products of matrices; Pillow's own resize, of one axis after
the other, must agree. Draws are Philox's (masked.py).
Made with Pillow 13.0.0 and numpy 2.4.6.
"""
import os
import struct
import zlib

import numpy as np
from PIL import Image

import fixture
import masked

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "images")
SITE = 19  # RANDOM_VIEW
HEIGHT, WIDTH = 13, 18


def pixels(height, width, channels):
    """As tests/client/images/test_image_views.c makes them."""
    i = np.arange(height * width * channels, dtype=np.uint64)
    return ((i * 2654435761 & 0xFFFFFFFF) >> 24).astype(np.uint8).reshape(height, width, channels)


def smooth(height, width, channels):
    y, x, c = np.mgrid[:height, :width, :channels]
    return ((np.sin(x / 5 + c) + np.cos(y / 4 - c)) * 60 + 128).astype(np.uint8)


# ---- PNG by hand ----


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth, color, interlaced, rows, height=HEIGHT, width=WIDTH, more=b""):
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(rows, 9)) +
            chunk(b"IEND", b""))


def adam7(image):
    """Rows of the seven passes, each with filter 0."""
    out = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                           (1, 0, 2, 1)):
        part = image[y0::dy, x0::dx]
        if part.size:
            out += b"".join(b"\0" + row.tobytes() for row in part)
    return out


def write(name, data):
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data)


def write_files():
    rgb, grey = smooth(HEIGHT, WIDTH, 3), smooth(HEIGHT, WIDTH, 1)[..., 0]
    alpha = pixels(HEIGHT, WIDTH, 1)[..., 0]
    colour = Image.fromarray(rgb)

    def save(name, image, **options):
        image.save(os.path.join(FOLDER, name), **options)

    save("colour.png", colour)
    save("grey.png", Image.fromarray(grey))
    save("bits1.png", Image.fromarray(grey).convert("1"))
    save("alpha.png", Image.fromarray(np.dstack([rgb, alpha])))
    save("grey_alpha.png", Image.fromarray(np.dstack([grey, alpha]), mode="LA"))
    palette = colour.quantize(16)
    save("palette.png", palette, transparency=3, bits=4)
    deep = (rgb.astype(np.uint16) << 8) + pixels(HEIGHT, WIDTH, 3)
    write("deep.png", png(16, 2, 0, b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)))
    write("deep_grey.png", png(16, 0, 0, b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep[..., 0])))
    write("interlaced.png", png(8, 2, 1, adam7(rgb)))
    save("grey.jpg", Image.fromarray(grey), quality=90)
    save("halved.jpg", colour, quality=85, subsampling=2)
    save("whole.jpg", colour, quality=95, subsampling=0)
    save("progressive.jpg", colour, quality=85, progressive=True)
    save("cmyk.jpg", colour.convert("CMYK"), quality=90)


def decoded(name):
    image = Image.open(os.path.join(FOLDER, name))
    if name == "deep_grey.png":
        return (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)[..., None]
    grey = image.mode in ("1", "L", "LA")
    array = np.asarray(image.convert("L" if grey else "RGB"))
    return array[..., None] if grey else array


# ---- Rows ----


def scale_axis(values, out, axis):
    """A matrix product in float64 along one axis, rounded to bytes."""
    size = values.shape[axis]
    reach = max(size / out, 1.0)
    centre = (np.arange(out) + 0.5) * size / out
    w = np.maximum(0, 1 - np.abs(np.arange(size)[None] + 0.5 - centre[:, None]) / reach)
    k = np.floor(2.0**22 * w / w.sum(1, keepdims=True) + 0.5)
    sums = np.tensordot(k, values.astype(np.float64), (1, axis))  # whole numbers below 2^53
    return np.minimum(np.floor((sums + 2.0**21) / 2.0**22), 255).astype(np.uint8)


def scale(image, height, width):
    along = np.moveaxis(scale_axis(image, width, 1), 0, 1)
    out = scale_axis(along, height, 0)
    theirs = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    for size in ((width, image.shape[0]), (width, height)):  # one axis at a time: Pillow may begin with the other
        theirs = theirs.resize(size, Image.Resampling.BILINEAR)
    theirs = np.asarray(theirs).reshape(out.shape)
    assert (theirs == out).all(), (image.shape, height, width)
    return out


def covering(frame, height, width):
    h, w, shorter = frame
    if shorter:
        return (height * shorter // width, shorter) if width <= height else (shorter, width * shorter // height)
    return (height * w // width, w) if w * height >= h * width else (h, width * h // height)


def words(seed, draw, quad):
    first = masked.philox(masked.words(0) + masked.words(0), masked.words(seed))
    key = masked.philox(list(first[:3]) + [first[3] ^ SITE], masked.words(seed))[:2]
    return masked.philox(masked.words(quad) + masked.words(draw), key)


def window(least, height, width, seed, draw):
    for i in range(10):
        word = words(seed, draw, 1 + i)
        area = height * width * (least + (1 - least) * word[0] / 2**32)
        proportions = np.exp(np.log(3 / 4) + (np.log(4 / 3) - np.log(3 / 4)) * word[1] / 2**32)
        w, h = round(float(np.sqrt(area * proportions))), round(float(np.sqrt(area / proportions)))
        if 1 <= w <= width and 1 <= h <= height:
            return word[2] * (height - h + 1) >> 32, word[3] * (width - w + 1) >> 32, h, w
    h, w = height, width
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * 4 / 3)
    return (height - h) // 2, (width - w) // 2, h, w


def row(image, frame, augment, seed, draw):
    """What a row sees; augment None: an evaluation."""
    height, width = image.shape[:2]
    h, w, _ = frame
    if augment and "resized-crop" in augment:
        y, x, wh, ww = window(augment["resized-crop"], height, width, seed, draw)
        seen = scale(image[y:y + wh, x:x + ww], h, w)
    else:
        seen = scale(image, *covering(frame, height, width))
        top, left, border = (seen.shape[0] - h) // 2, (seen.shape[1] - w) // 2, 0
        if augment and "crop" in augment:
            border, word = augment["crop"], words(seed, draw, 0)
            top = word[0] * (seen.shape[0] - h + 2 * border + 1) >> 32
            left = word[1] * (seen.shape[1] - w + 2 * border + 1) >> 32
        sides = ((border, border), (border, border), (0, 0))
        seen = np.pad(seen, sides, mode="reflect" if augment and augment.get("reflect") else "constant")
        seen = seen[top:top + h, left:left + w]
    if augment and augment.get("flip") and words(seed, draw, 0)[2] >> 31:
        seen = seen[:, ::-1]
    return seen


def spelled(augment):
    return augment and ",".join(k if v is True else f"{k}={v}" for k, v in augment.items())


CASES = [  # height, width, channels, frame, augment
    (32, 32, 3, (32, 32, 0), None), (28, 28, 1, (28, 28, 0), None), (13, 18, 3, (8, 8, 0), None),
    (50, 41, 3, (16, 24, 0), None), (41, 50, 1, (16, 16, 20), None), (10, 7, 3, (24, 24, 0), None),
    (300, 3, 3, (5, 4, 0), None), (3, 300, 3, (5, 4, 7), None), (64, 48, 3, (48, 48, 0), None),
    (32, 32, 3, (32, 32, 0), {"crop": 4, "flip": True}),
    (32, 32, 3, (32, 32, 0), {"crop": 4, "reflect": True, "flip": True}),
    (28, 28, 1, (28, 28, 0), {"crop": 27}), (28, 28, 1, (28, 28, 0), {"crop": 27, "reflect": True}),
    (41, 50, 3, (16, 16, 20), {"crop": 0, "flip": True}), (41, 50, 3, (16, 16, 0), {"crop": 2, "reflect": True}),
    (40, 60, 3, (24, 24, 0), {"resized-crop": 0.08, "flip": True}), (60, 9, 3, (12, 12, 0), {"resized-crop": 0.9}),
    (9, 60, 1, (12, 16, 0), {"resized-crop": 0.95}), (7, 7, 3, (8, 8, 0), {"resized-crop": 1.0}),
    (4, 5, 1, (4, 5, 0), {"crop": 2, "flip": True}),
]
DRAWS = ((7, 0), (7, 1), (1 << 40, 5 << 32))


def rows():
    out = []
    for height, width, channels, frame, augment in CASES:
        many = DRAWS + tuple((3, draw) for draw in range(16)) if height * width < 40 else DRAWS
        for seed, draw in many if augment else ((0, 0),):
            seen = row(pixels(height, width, channels), frame, augment, seed, draw)
            h, w, shorter = frame
            out.append({"height": height, "width": width, "channels": channels,
                        "image": f"{h}x{w}" + (f",shorter={shorter}" if shorter else ""), "augment": spelled(augment),
                        "seed": seed, "draw": draw, "seen": seen.tobytes().hex()})
    return out


def main():
    os.makedirs(FOLDER, exist_ok=True)
    write_files()
    names = sorted(n for n in os.listdir(FOLDER) if n.endswith((".png", ".jpg")))
    images = {}
    for name in names:
        array = decoded(name)
        images[name] = {"height": array.shape[0], "width": array.shape[1], "channels": array.shape[2],
                        "pixels": array.tobytes().hex()}
    for name, data in (("decoded.json", images), ("rows.json", rows())):
        fixture.write(os.path.join(FOLDER, name), data)


if __name__ == "__main__":
    main()
