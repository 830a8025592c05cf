"""Secrets of known kinds from random numbers, in every position and encoding in which a text may
hold them.
"""

import base64
import html
import json
import re
import urllib.parse
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits

ALNUM = ascii_letters + digits
HEX = digits + hexdigits[10:16]


def some(rng, signs, count):
    return "".join(rng.choices(signs, k=count))


def in_groups(text, sizes, sign):
    parts, at = [], 0
    while at < len(text):
        parts.append(text[at : at + (size := sizes[min(len(parts), len(sizes) - 1)])])
        at += size
    return sign.join(parts)


def card(rng):
    start, length, sizes = rng.choice(
        [("4", 16, [4]), ("51", 16, [4]), ("6011", 16, [4]), ("37", 15, [4, 6, 5])]
    )
    body = start + some(rng, digits, length - 1 - len(start))
    total = sum(sum(divmod(int(d) * (2 - i % 2), 10)) for i, d in enumerate(reversed(body)))
    number = body + str(-total % 10)
    return in_groups(
        number, sizes, rng.choice(["", " ", "-", "_", ".", "/", "  ", "\u00a0"])
    ), number


def iban(rng):
    country, letters, count = rng.choice(
        [("DE", 0, 18), ("GB", 4, 14), ("NL", 4, 10), ("FR", 0, 23), ("NO", 0, 11)]
    )
    body = some(rng, ascii_uppercase, letters) + some(rng, digits, count)
    check = 98 - int("".join(str(int(sign, 36)) for sign in f"{body}{country}00")) % 97
    number = f"{country}{check:02}{body}"
    written = in_groups(number, [4], rng.choice(["", " ", "-", ".", "_", "\u00a0"]))
    return (written if rng.random() < 0.7 else written.lower()), number


def identity(rng):
    """A Chinese identity number; one in eleven ends in X, here half of them."""
    while True:
        day = f"{rng.randint(1930, 2015)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}"
        body = (
            f"{rng.choice([11, 31, 44, 51, 65])}{some(rng, digits, 4)}{day}{some(rng, digits, 3)}"
        )
        last = "10X98765432"[sum(int(d) * pow(2, 17 - i, 11) for i, d in enumerate(body)) % 11]
        if last == "X" or rng.random() < 0.1:
            number = body + rng.choice([last, last.lower()])
            return in_groups(number, [6, 8, 4], rng.choice(["", "", " ", "-"])), number


def password(rng):
    """A word that only what stands before it makes a secret."""
    kept = some(rng, ascii_lowercase, rng.randint(6, 9)) + some(rng, digits, rng.randint(0, 2))
    name = rng.choice(
        [
            "pw",
            "pass",
            "passwd",
            "password",
            "passphrase",
            "pwd",
            "PW",
            "Pass",
            "PASSWD",
            "PassWord",
            "pass_word",
            "pass-word",
            "db_pass",
            "DB_PASS",
            "userPass",
            "mysql_pw",
            "PGPASSWORD",
            "pass phrase",
            "pswd",
            "passcode",
            "api_key",
            "apiKey",
            "secret",
            "client_secret",
            "token",
            "Authorization",
            "\u5bc6\u7801",
            "Passwort",
        ]
    )
    sign = rng.choice(
        [":", ": ", " : ", "=", " = ", "\t= ", " := ", "=>", " => ", '="', ":'", "\uff1a", " is: "]
    )
    return f"{name}{sign}{kept}{sign[-1] if sign[-1] in QUOTES else ''}", kept


QUOTES = "\"'"


def jwt(rng):
    part = (
        base64.urlsafe_b64encode(json.dumps({"sub": some(rng, ALNUM, 12)}).encode())
        .decode()
        .rstrip("=")
    )
    text = f"eyJhbGciOiJIUzI1NiJ9.{part}.{some(rng, ALNUM + '-_', 43)}"
    return text, text.partition(".")[2]


def address(rng):
    text = rng.choice(
        [
            ".".join(str(rng.randint(11, 254)) for _ in range(4)),
            ":".join(some(rng, HEX, 2) for _ in range(6)),
            ":".join(some(rng, digits[1:] + "abcdef", 4) for _ in range(8)),
        ]
    )
    return text, text


def named(pattern):
    """A text of which each ``*`` is a name of a person or machine, and nothing else is secret."""

    def make(rng):
        name = some(rng, ascii_lowercase, 9)
        return pattern.replace("*", name), name

    return make


def token(before, signs, count):
    def make(rng):
        text = some(rng, signs, count)
        return before + text, text

    return make


KINDS = {
    "card": card,
    "iban": iban,
    "identity": identity,
    "password": password,
    "jwt": jwt,
    "address": address,
    "hugging face": token("hf_", ALNUM, 34),
    "openai": token("sk-proj-", ALNUM + "_-", 48),
    "github": token("ghp_", ALNUM, 36),
    "gitlab": token("glpat-", ALNUM, 20),
    "aws": token("AKIA", ALNUM.upper(), 16),
    "aws secret": token("aws_secret_access_key=", ALNUM + "+/", 40),
    "google": token("AIza", ALNUM + "_-", 35),
    "slack": token("xoxb-", digits, 24),
    "stripe": token("sk_live_", ALNUM, 24),
    "nvidia": token("nvapi-", ALNUM, 64),
    "npm": token("npm_", ALNUM, 36),
    "hash": token("", HEX, 40),
    "mail": named("*@example.org"),
    "uuid": lambda rng: (in_groups(text := some(rng, HEX, 32), [8, 4, 4, 4, 12], "-"), text),
    "url": named("postgres://bob:*@db/x"),
    "path": named("/home/*/models"),
    "windows": named("C:\\Users\\*\\x.py"),
    "host": named("*.corp.internal"),
    "bearer": token("Bearer ", ALNUM, 32),
    "share": named("\\\\*\\models"),
    "key": lambda rng: (
        f"-----BEGIN KEY-----\n{(text := some(rng, ALNUM, 64))}\n-----END KEY-----",
        text,
    ),
}


def split(text, at, sign):
    return text[:at] + sign + text[at:]


def _middle(text, core):
    found = text.lower().find(core.lower())
    return max(found, 0) + len(core) // 2


ENCODINGS = {
    "plain": lambda text, core, rng: text,
    "percent": lambda text, core, rng: urllib.parse.quote(text, safe=""),
    "percent of all": lambda text, core, rng: "".join(f"%{byte:02x}" for byte in text.encode()),
    "percent twice": lambda text, core, rng: urllib.parse.quote(
        "".join(f"%{byte:02X}" for byte in text.encode()), safe=""
    ),
    "form": lambda text, core, rng: urllib.parse.urlencode({"q": text}),
    "base64": lambda text, core, rng: base64.b64encode(text.encode()).decode(),
    "base64 of links": lambda text, core, rng: (
        base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    ),
    "base64 in lines": lambda text, core, rng: in_groups(
        base64.b64encode(text.encode()).decode(), [20], "\n"
    ),
    "base64 twice": lambda text, core, rng: base64.b64encode(
        base64.b64encode(text.encode())
    ).decode(),
    "base32": lambda text, core, rng: base64.b32encode(text.encode()).decode(),
    "printable": lambda text, core, rng: "".join(f"={byte:02X}" for byte in text.encode()),
    "digits in pairs": lambda text, core, rng: in_groups(
        text.encode().hex(), [2], rng.choice(" :-")
    ),
    "digits": lambda text, core, rng: text.encode().hex(),
    "DIGITS": lambda text, core, rng: text.encode().hex().upper(),
    "JSON": lambda text, core, rng: json.dumps(text)[1:-1],
    "JSON in JSON": lambda text, core, rng: json.dumps(json.dumps(text))[1:-1],
    "points of code": lambda text, core, rng: "".join(f"\\u{ord(sign):04x}" for sign in text),
    "escapes of C": lambda text, core, rng: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "HTML": lambda text, core, rng: html.escape(text),
    "HTML of all": lambda text, core, rng: "".join(f"&#{ord(sign)};" for sign in text),
    "line end": lambda text, core, rng: split(text, _middle(text, core), "\n"),
    "line end of Windows": lambda text, core, rng: split(text, _middle(text, core), "\r\n"),
    "line goes on": lambda text, core, rng: split(text, _middle(text, core), "\\\n  "),
    "line end in JSON": lambda text, core, rng: split(text, _middle(text, core), "\\n"),
    "no width": lambda text, core, rng: split(text, _middle(text, core), "\u200b"),
    "soft hyphen": lambda text, core, rng: split(text, _middle(text, core), "\u00ad"),
}
POSITIONS = {
    "alone": "*",
    "after a word": "load *",
    "before a word": "* step",
    "between words": "forward * backward",
    "joined by _": "load_*_step",
    "joined by -": "load-*-step",
    "joined by .": "load.*.step",
    "joined by /": "load/*/step",
    "joined by :": "load:*:step",
    "joined by ::": "at::native::*",
    "after #": "step #*",
    "argument": "void run<*>(int)",
    "argument of a call": "load(*)",
    "among arguments": "gemm(4096, *, 64)",
    "quoted": 'load("*")',
    "value": "name=*",
    "in brackets": "[*]",
    "in braces": "{*}",
    "list": "a, *, b",
    "document": '{"name": "*", "n": 1}',
    "text of Python": "{'name': '*'}",
    "sentence": "see *, then stop.",
    "second line": "forward\n*",
    "first line": "*\nforward",
    "after numbers": "mm 4096 512 *",
    "after a tab": "step\t*",
    "link": "https://example.org/x?q=*&n=1",
    "marked": "|*|",
    "semicolons": "a;*;b",
}


def planted(rng, count):
    """Names of kind, encoding and position, the text, and the forms of its secret; every triple
    in turn.
    """
    triples = [
        (kind, encoding, position)
        for kind in KINDS
        for encoding in ENCODINGS
        for position in POSITIONS
    ]
    rng.shuffle(triples)
    for i in range(count):
        kind, encoding, position = triples[i % len(triples)]
        secret, core = KINDS[kind](rng)
        written = ENCODINGS[encoding](secret, core, rng)
        forms = [core] if squeezed(core) in squeezed(written) else [core, written]
        yield f"{kind} / {encoding} / {position}", POSITIONS[position].replace("*", written), forms


def squeezed(text):
    return re.sub(r"[\W_]", "", text).lower()


def is_left(forms, output):
    """Whether half of a secret, or of its encoded form, can be read in a text, whatever divides
    its letters.
    """
    read = squeezed(re.sub(r"<[a-z]{3,10}:[0-9a-f]{10}>", "\n\u00e9\u00e9\n", output))
    for form in map(squeezed, forms):
        half = max(6, -(-len(form) // 2))
        if any(form[at : at + half] in read for at in range(len(form) - half + 1)):
            return True
    return False
