import contextlib
import io
import struct
import threading
import warnings
import zlib
from concurrent import futures

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from jaxtrain.data.decode import MAX_PIXELS, MODES, decode
from jaxtrain.errors import DataError

HEIGHT, WIDTH = 6, 9
FORMATS = ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"]
EXACT = ["PNG", "BMP", "WEBP", "TIFF"]
# Any one of the chunks that hold pixels comes before these.
LOSSLESS = {"WEBP": {"lossless": True}}


def grid(height=HEIGHT, width=WIDTH, identity=0):
    """Each pixel says where it is (red, green) and of which image (blue)."""
    down, across = np.mgrid[:height, :width]
    return np.stack([down * 20, across * 20, np.full_like(down, identity)], -1).astype(np.uint8)


def big(identity=0):
    """A grid of blocks that JPEG keeps."""
    return np.kron(grid(identity=identity), np.ones((16, 16, 1), np.uint8))


def encode(image, file_format="PNG", **options):
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image.squeeze(-1) if image.shape[-1:] == (1,) else image)
    content = io.BytesIO()
    image.save(content, file_format, **LOSSLESS.get(file_format, {}), **options)
    return content.getvalue()


def grey_of(pixels):
    """ITU-R 601-2."""
    return np.round(pixels @ [0.299, 0.587, 0.114])[..., None]


def near(found, expected, most=1):
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= most
    return True


@pytest.mark.parametrize("file_format", EXACT)
def test_colours_come_back_exactly(file_format):
    encoded = encode(grid(identity=77), file_format)
    assert np.array_equal(decode(encoded, 3), grid(identity=77))
    assert near(decode(encoded, 1), grey_of(grid(identity=77)))
    opaque = np.full((HEIGHT, WIDTH, 1), 255)
    assert np.array_equal(decode(encoded, 4), np.dstack([grid(identity=77), opaque]))


def test_colours_of_lossy_formats():
    assert near(decode(encode(big(), "JPEG", quality=100, subsampling=0), 3), big(), 4)
    assert near(decode(encode(big(), "GIF"), 3), big(), 8)  # a palette
    assert near(decode(encode(big(), "JPEG", quality=95, progressive=True), 3)[8::16], big()[8::16],
                12)  # fmt: skip


@pytest.mark.parametrize("file_format", [*EXACT, "GIF", "JPEG"])
def test_grey(file_format):
    grey = big()[..., :1]
    encoded = encode(grey, file_format)
    most = 2 if file_format == "JPEG" else 0
    assert near(decode(encoded, 1), grey, most)
    assert near(decode(encoded, 3), np.repeat(grey, 3, 2), most)


@pytest.mark.parametrize("channels", MODES)
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
def test_what_is_opaque_is_as_pillow_converts_it(mode, channels):
    encoded = encode(Image.fromarray(big()).convert(mode), "TIFF")
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert(MODES[channels]))
    expected = expected.reshape(*big().shape[:2], channels)
    for options in ({}, {"background": None, "upright": False}):
        assert np.array_equal(decode(encoded, channels, **options), expected)


def test_bits_and_cmyk():
    bits = np.indices((4, 5)).sum(0) % 2 == 1
    assert np.array_equal(decode(encode(Image.fromarray(bits)), 1)[..., 0], bits * 255)
    assert near(decode(encode(Image.fromarray(big()).convert("CMYK"), "TIFF"), 3), big())
    jpeg = encode(Image.fromarray(big()).convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert near(decode(jpeg, 3), big(), 8)


def blended(colours, alpha, background):
    share = alpha[..., None] / 255
    return np.round(colours * share + np.asarray(background) * (1 - share))


@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255), (10, 200, 30)])
@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
def test_transparency_lies_on_the_background(file_format, background):
    alpha = np.linspace(0, 255, HEIGHT * WIDTH).astype(np.uint8).reshape(HEIGHT, WIDTH)
    encoded = encode(np.dstack([grid(), alpha]), file_format, **(
        {"exact": True} if file_format == "WEBP" else {}))  # fmt: skip
    expected = blended(grid(), alpha, background)
    assert near(decode(encoded, 3, background=background), expected)
    assert near(decode(encoded, 1, background=background), grey_of(expected), 2)
    if background == (0, 0, 0):
        assert np.array_equal(decode(encoded, 3), decode(encoded, 3, background=background))
    assert np.array_equal(decode(encoded, 3, background=None), grid())
    with_alpha = np.dstack([grid(), alpha])
    assert np.array_equal(decode(encoded, 4, background=background), with_alpha)


def test_transparency_of_grey_of_palettes_and_of_one_colour():
    grey = grid()[..., 0]
    alpha = np.full_like(grey, 51)
    la = encode(np.dstack([grey, alpha]), "PNG")
    assert near(decode(la, 1, background=(255, 255, 255))[..., 0], grey * 0.2 + 255 * 0.8)
    assert near(decode(la, 1)[..., 0], grey * 0.2)
    assert np.array_equal(decode(la, 1, background=None)[..., 0], grey)

    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "L").convert("P")
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    white = (255, 255, 255)
    for file_format in ("PNG", "GIF"):
        encoded = encode(palette, file_format, transparency=1)
        colours = [[255, 0, 0], [255, 255, 255], [0, 0, 255]]
        assert decode(encoded, 3, background=white).tolist() == [colours]
        assert decode(encoded, 3).tolist() == [[[255, 0, 0], [0, 0, 0], [0, 0, 255]]]
        assert decode(encoded, 4)[0, :, 3].tolist() == [255, 0, 255]
    shares = encode(palette, "PNG", transparency=bytes([255, 0, 51]))
    assert decode(shares, 3, background=white).tolist() == [
        [[255, 0, 0], [255, 255, 255], [204, 204, 255]]
    ]

    for image, transparent in ((grid(), (20, 40, 0)), (grid()[..., 0], 20)):
        encoded = encode(image, "PNG", transparency=transparent)
        found = decode(encoded, 3, background=(1, 2, 3))
        gone = np.all(np.atleast_3d(image) == transparent, -1)
        assert gone.any()
        assert np.all(found[gone] == [1, 2, 3])
        assert np.all(found[~gone] == np.atleast_3d(image)[~gone])


def tiff(content, **tags):
    """A grey TIFF without compression."""
    number = {"width": 256, "length": 257, "bits": 258, "photometric": 262, "sample_format": 339}
    entries = {259: 1, 273: 0, 277: 1, 278: tags["length"], 279: len(content)}
    entries |= {number[name]: value for name, value in tags.items()}
    entries[273] = 8 + 2 + 12 * len(entries) + 4
    header = b"II*\0" + struct.pack("<IH", 8, len(entries))
    for tag, value in sorted(entries.items()):
        header += struct.pack("<HHII", tag, 4 if tag in (273, 279) else 3, 1, value)
    return header + bytes(4) + content


DEEP = np.array([[0, 255, 256, 40000, 65535]], np.uint16)
BIG_ENDIAN = Image.frombytes("I;16B", (5, 1), DEEP.astype(">u2").tobytes())


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(encode(DEEP, "PNG"), id="PNG"),
        pytest.param(encode(DEEP, "TIFF"), id="TIFF"),
        pytest.param(encode(DEEP, "TIFF", compression="tiff_lzw"), id="packed TIFF"),
        pytest.param(encode(BIG_ENDIAN, "TIFF"), id="big-endian TIFF"),
        pytest.param(
            tiff((65535 - DEEP).tobytes(), width=5, length=1, bits=16, photometric=0),
            id="white is zero",
        ),
        pytest.param(  # two numbers in three bytes
            tiff(bytes.fromhex("00000f 0109c4 fff0"), width=5, length=1, bits=12, photometric=1),
            id="12 bits",
        ),
    ],
)  # fmt: skip
def test_deep_grey_is_scaled_and_not_clipped(encoded):
    assert decode(encoded, 1)[..., 0].tolist() == [[0, 0, 1, 156, 255]]
    assert decode(encoded, 3)[..., 2].tolist() == [[0, 0, 1, 156, 255]]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 65535), min_size=1, max_size=20))
def test_deep_grey_keeps_its_order_and_its_8_bits(values):
    found = decode(encode(np.array([values], np.uint16)), 1)[0, :, 0].astype(int)
    assert np.all(np.abs(found - np.array(values) / 257) <= 1)
    for scale in (256, 257):  # both ways to make 16 bits of 8
        eight = np.array([values], np.uint16) >> 8
        assert np.array_equal(decode(encode(eight * np.uint16(scale)), 1)[..., 0], eight)


TURNED = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90,
}


def turned(orientation, file_format, image=None, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(grid(identity=50) if image is None else image, file_format, exif=exif, **options)


@pytest.mark.parametrize("orientation", [*TURNED, 0, 9])
def test_the_orientation_is_applied(orientation):
    expected = TURNED.get(orientation, lambda image: image)(grid(identity=50))
    for file_format in ("PNG", "WEBP", "TIFF"):
        assert np.array_equal(decode(turned(orientation, file_format), 3), expected)
        if file_format != "TIFF":
            left = decode(turned(orientation, file_format), 3, upright=False)
            assert np.array_equal(left, grid(identity=50))
    if orientation in TURNED:  # libtiff writes no other
        packed = turned(orientation, "TIFF", compression="tiff_lzw")
        assert np.array_equal(decode(packed, 3), expected)
    jpeg = decode(turned(orientation, "JPEG", big(), quality=100, subsampling=0), 3)
    assert near(jpeg, TURNED.get(orientation, lambda image: image)(big()), 4)
    deep = turned(orientation, "PNG", grid()[..., 0].astype(np.uint16) * 256)
    assert np.array_equal(decode(deep, 1), expected[..., :1] if orientation in (0, 1, 9) else
                          TURNED[orientation](grid()[..., :1]))  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_damaged_exif_is_no_damage():
    for exif in (b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b"Exif\0\0"):
        assert near(decode(encode(big(), "JPEG", exif=exif, quality=100), 3)[8::16, 8::16],
                    big()[8::16, 8::16], 12)  # fmt: skip


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_several(file_format):
    frames = [Image.fromarray(grid(identity=shade)) for shade in (40, 120, 240)]
    encoded = encode(frames[0], file_format, save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(encoded)).n_frames == 3
    assert near(decode(encoded, 3), grid(identity=40), 0)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1)])
@pytest.mark.parametrize("channels", MODES)
def test_any_shape(size, channels):
    image = np.full((*size, 3), [[9, 90, 200]], np.uint8)
    for file_format in FORMATS:
        found = decode(encode(image, file_format), channels)
        assert found.shape == (*size, channels)
        assert np.ptp(found, (0, 1)).max() == 0


def test_a_large_photo():
    assert decode(encode(Image.new("RGB", (5000, 5000), (1, 2, 3)), "JPEG"), 3).shape[0] == 5000


def png_header(width, height):
    def chunk(kind, content):
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + (
        chunk(b"IEND", b""))  # fmt: skip


def gif_header(width, height):
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x08\x01\0\0"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + frame + b";"


NO_IMAGE = (
    "the image is no JPEG, PNG, WebP, BMP, TIFF or GIF, or only the beginning of one: it starts "
)
BOMB = "the image has too many pixels"
BAD = {
    "empty": (b"", "the image is empty: its file has 0 bytes"),
    "one byte": (b"\xff", NO_IMAGE + r"with b'\xff'"),
    "text": (b"hello world, this is text\n", NO_IMAGE + "with b'hello world,'"),
    "web page": (b"<!DOCTYPE html><html>", NO_IMAGE + "with b'<!DOCTYPE ht'"),
    "zeros": (bytes(5000), NO_IMAGE),
    "another format": (encode(grid(), "PPM"), NO_IMAGE + "with b'P6"),
    "only what tells the format": (b"\x89PNG\r\n\x1a\n", NO_IMAGE),
    "beginning of JPEG": (encode(big(), "JPEG")[:20], NO_IMAGE),
    "JPEG without scans": (b"\xff\xd8\xff\xd9", NO_IMAGE),
    "fractions": (
        encode(np.ones((2, 2), np.float32), "TIFF"),
        "the image has signed numbers, fractions or more than 16 bits a pixel (Pillow's mode F)",
    ),
    "32 bits": (encode(np.ones((2, 2), np.int32), "TIFF"), "(Pillow's mode I); save it with 8 or"),
    "signed 16 bits": (
        tiff(bytes(4), width=2, length=1, bits=16, photometric=1, sample_format=2),
        "signed numbers",
    ),
    "bomb": (png_header(50_000, 50_000), BOMB),
    "bomb that Pillow only warns of": (png_header(10_000, 10_000), BOMB),
    "GIF bomb": (gif_header(65_535, 65_535), BOMB),
    "TIFF bomb": (tiff(b"0", width=60_000, length=60_000, bits=8, photometric=1), BOMB),
    "no height": (png_header(5, 0), "the image "),
    "no pixels": (gif_header(0, 0), "the image "),
    "no frame": (b"GIF89a" + bytes(7) + b";", NO_IMAGE + "with b'GIF89a"),
    "GIF without rows": (gif_header(4, 4), "the image is broken: "),
    "PNG without rows": (png_header(5, 5), "the image is broken: "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("channels", [1, 3])
def test_bad_files_are_said_in_one_line(case, channels):
    encoded, said = BAD[case]
    with pytest.raises(DataError) as raised:
        decode(encoded, channels)
    message = str(raised.value)
    assert said in message
    assert message.startswith("the image ")
    assert message.isprintable()
    assert "0x" not in message  # an object's address


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("share", [0.5, 0.75, 0.95])
def test_truncated_files_open_but_are_refused(file_format, share):
    noise = np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8)
    encoded = encode(noise, file_format)
    assert decode(encoded, 3).shape == (64, 64, 3)
    if file_format in ("JPEG", "PNG"):
        Image.open(io.BytesIO(encoded[: len(encoded) // 2]))
    with pytest.raises(DataError, match=r"^the image is (broken: |no JPEG)"):
        decode(encoded[: int(share * len(encoded))], 3)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(FORMATS), st.data())
def test_damage_is_refused_or_gives_an_image(file_format, data):
    encoded = bytearray(encode(grid(), file_format))
    for place in data.draw(st.lists(st.integers(0, len(encoded) - 1), min_size=1, max_size=5)):
        encoded[place] ^= data.draw(st.integers(1, 255))
    with warnings.catch_warnings(), contextlib.suppress(DataError):
        warnings.simplefilter("ignore")
        assert decode(bytes(encoded), 3).shape[2] == 3


@pytest.mark.filterwarnings("default")
def test_the_limit_is_held_where_warnings_are_not_errors():
    side = int(MAX_PIXELS**0.5)
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(DataError) as raised:
        decode(png_header(side + 1, side + 1), 1)
    assert f"{BOMB} (9460x9460): more than 89,478,485 are refused" in str(raised.value)


def test_pillows_state_is_left_alone():
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    for encoded, _ in BAD.values():
        with pytest.raises(DataError):
            decode(encoded, 3)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_many_threads_at_once():
    encoded = [encode(grid(identity=each), FORMATS[each % 2 * 4]) for each in range(200)]
    barrier = threading.Barrier(8)

    def work(thread):
        barrier.wait()
        return [decode(each, 3)[0, 0, 2] for each in encoded[thread::8]]

    with futures.ThreadPoolExecutor(8) as pool:
        for thread, found in enumerate(pool.map(work, range(8))):
            assert found == list(range(200))[thread::8]
