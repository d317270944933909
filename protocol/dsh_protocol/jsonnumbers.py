"""How a JSON number is printed. Pure text, without any library, so that the command line can print as a log does."""

from __future__ import annotations

_FIRST_UNSAFE = 2.0**53
_PLAIN_BELOW = 21  # decimal exponents, from ECMAScript's Number::toString
_PLAIN_ABOVE = -6


def print_finite(number: float) -> str:
    """Return a finite float as ECMAScript prints it: the shortest digits that read back as the same double.

    A whole one of 2^53 or more is printed with an exponent; see `jsonprint`.
    """
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    unstripped = (whole + fraction).lstrip("0")
    digits = unstripped.rstrip("0")
    leading = len(fraction) - len(unstripped) if whole == "0" else -len(whole)
    point = int(exponent or 0) - leading  # where the decimal point stands, counted in digits
    count = len(digits)
    if count <= point <= _PLAIN_BELOW and abs(number) < _FIRST_UNSAFE:
        return sign + digits + "0" * (point - count)
    if 0 < point < count:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if _PLAIN_ABOVE < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
