"""Detects RSA keys that look valid but can be factored."""

from math import gcd, isqrt, prod

#: The primes by which ROCA is recognized (CVE-2017-15361): all moduli of the faulty library are powers of 65537
#: modulo these.
_PRIMES = tuple(n for n in range(3, 168) if all(n % divisor for divisor in range(2, n)))
_GENERATOR = 65537
_POWERS = {prime: frozenset(pow(_GENERATOR, exponent, prime) for exponent in range(prime)) for prime in _PRIMES}
#: Primes that Fermat's method finds within this many steps are too close to be random.
_STEPS = 100


def find_weakness(modulus: int, exponent: int) -> str:
    """Return why an RSA key can be broken, or an empty string if no reason is known."""
    if exponent < 3 or exponent % 2 == 0:
        return "its exponent is not an odd number above 1"
    if gcd(modulus, 2 * prod(_PRIMES)) != 1:
        return "its modulus has a small factor"
    if all(modulus % prime in powers for prime, powers in _POWERS.items()):
        return "it was made by a faulty library (ROCA)"
    if _has_close_factors(modulus):
        return "its primes are too close to each other"
    return ""


def _has_close_factors(modulus: int) -> bool:
    start = isqrt(modulus - 1) + 1
    for middle in range(start, start + _STEPS):
        rest = middle * middle - modulus
        if isqrt(rest) ** 2 == rest:
            return True
    return False
