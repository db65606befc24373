"""Files over MCP: written, listed, read as text, as images and as bytes; the same over every transport."""

from __future__ import annotations

import base64

from mcp import types

from tests.mcp.clients import text_of
from tests.mcp.conftest import Connect

# One pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_a_text_is_written_listed_and_read(connect: Connect) -> None:
    async with connect() as talk:
        content = "grün\n" + "".join(f"line {number}\n" for number in range(2, 11))
        written = await talk.text("write_file", path="made/for/it.txt", content=content)
        assert written == "70 bytes written to made/for/it.txt"
        assert await talk.text("list_files", path="/root/made/for") == "it.txt  70 bytes"
        assert "made/" in (await talk.text("list_files")).split("\n")
        listed = await talk.structure("list_files", path="made/for")
        assert listed["entries"] == [{"name": "it.txt", "type": "file", "size_bytes": 70}]
        assert await talk.text("read_file", path="made/for/it.txt") == content.removesuffix("\n")
        some = await talk.text("read_file", path="made/for/it.txt", first_line=3, line_count=2)
        assert some == "line 3\nline 4\n(lines 3 to 4 of 10)"
        assert await talk.text("run_python", code="len(open('made/for/it.txt').read())") == "value: 69"


async def test_bytes_go_in_and_out(connect: Connect) -> None:
    data = bytes(range(256)) * 1000
    async with connect() as talk:
        encoded = base64.b64encode(data).decode()
        await talk.text("write_file", path="data.bin", content=encoded, encoding="base64")
        assert await talk.text("run_python", code="open('data.bin', 'rb').read()[:3]") == r"value: b'\x00\x01\x02'"
        made = await talk.call("read_file", path="data.bin", encoding="base64")
        resource = made.content[1]
        assert isinstance(resource, types.EmbeddedResource)
        assert isinstance(resource.resource, types.BlobResourceContents)
        assert base64.b64decode(resource.resource.blob) == data
        as_text = await talk.call("read_file", path="data.bin")
        assert as_text.is_error
        assert text_of(as_text) == "data.bin: not text, 256000 bytes"


async def test_an_image_is_seen(connect: Connect) -> None:
    async with connect() as talk:
        await talk.text("write_file", path="dot.png", content=base64.b64encode(PNG).decode(), encoding="base64")
        made = await talk.call("read_file", path="dot.png")
        image = made.content[1]
        assert isinstance(image, types.ImageContent)
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PNG)


async def test_odd_files_are_told(connect: Connect) -> None:
    async with connect() as talk:
        code = r"""
            import os
            open('empty', 'w').close()
            open('long.txt', 'w').write('a' * 50_000)
            with open('huge.txt', 'w') as file:
                file.write('ä' * 5_000_000)
            os.mkdir('names'); open(b'names/\xff\n', 'w').close()
        """
        await talk.text("run_python", code=code)
        assert await talk.text("read_file", path="empty") == "(empty is empty)"
        assert "30000 characters left out" in await talk.text("read_file", path="long.txt")
        assert "huge.txt continues after 8388608 bytes" in await talk.text("read_file", path="huge.txt")
        assert (await talk.call("read_file", path="huge.txt", encoding="base64")).is_error
        assert await talk.text("list_files", path="names") == r"'\udcff\n'  0 bytes"
        assert (await talk.call("read_file", path="names")).is_error
        assert (await talk.call("list_files", path="nowhere")).is_error
