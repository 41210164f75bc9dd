"""Small binary values with a layout number in front: variable-length integers and texts."""

from __future__ import annotations


class Writer:
    """Appends fields; `done` returns the value."""

    def __init__(self, layout: int) -> None:
        self._out = bytearray([layout])

    def number(self, value: int) -> None:
        """Append an integer >= 0, seven bits a byte."""
        while value >= 0x80:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def text(self, value: str) -> None:
        """Append a text with its length."""
        raw = value.encode()
        self.number(len(raw))
        self._out += raw

    def done(self) -> bytes:
        """Return the value."""
        return bytes(self._out)


class Reader:
    """Reads fields in the order they were written; ValueError where the value is not of this layout."""

    def __init__(self, value: bytes, layout: int, what: str) -> None:
        self._value, self._at, self._what = value, 1, what
        if not value or value[0] != layout:
            found = value[0] if value else "no"
            raise ValueError(f"a {what} of {found} layout; this version knows layout {layout}")

    def number(self) -> int:
        """The next integer."""
        value = shift = 0
        while True:
            if self._at >= len(self._value) or shift > 63:
                raise ValueError(f"a stored {self._what} is cut short")
            byte = self._value[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str:
        """The next text."""
        length = self.number()
        raw = self._value[self._at : self._at + length]
        if len(raw) != length:
            raise ValueError(f"a stored {self._what} is cut short")
        self._at += length
        return raw.decode()
