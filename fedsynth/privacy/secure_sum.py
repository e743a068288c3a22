"""A sum of which nobody sees the parts (Bonawitz et al. 2017): what clients and server compute. No federation here.

Every client adds to its numbers a mask that it shares with each other client, which cancel in the sum, and a mask of
its own. Shares of the secrets behind both lie, encrypted, with all the others: enough of them together can remove the
own masks of those who stayed, or the shared masks of those who left, and never both of one client.

Keys, encryption and the sharing of secrets are those of `flwr.common.secure_aggregation`; its masks are not used: they
come from 32 bits of the seed and a generator that is no cipher. Here they are a stream of AES-256 in counter mode.
All secrets come from the operating system. They cancel, so the sum is the same whatever they were.
"""

import base64
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError, UserError

FEWEST = 3  # clients: of two, each could take its own part out of the sum
FRACTION_BITS = 24  # of the fixed point: a step of 6e-8
LARGEST = 2.0**10  # of a number, before it is weighed
ONE = 2**FRACTION_BITS
UNITS = int(LARGEST) * ONE  # steps in the largest number

Words = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""
PublicKeys = tuple[str, str]
"""Of a client: one to send it secrets, one for the masks."""


class SecureSumError(FedsynthError):
    """A request that would give a client away, or numbers that cannot be summed up. Nothing leaves."""


def require_primitives() -> None:
    """Say what to install where the cryptography is missing."""
    if any(find_spec(name) is None for name in ("flwr", "cryptography")):
        raise UserError(
            "privacy.secure_aggregation needs Flower's cryptography, which is not installed: "
            "pip install 'fedsynth[flower]', here and at every site."
        )


def enough(share: float, clients: int) -> int:
    """How many of so many clients must stay; more than half, or two halves could be asked for different secrets."""
    return max(2, clients // 2 + 1, math.ceil(share * clients - 1e-9))


# -- whole numbers in place of weights ------------------------------------------------------------------------------


def heaviest(clients: int) -> int:
    """The largest weight a client may have, so that no sum of so many leaves 64 bits."""
    return (2**63 - 1) // (clients * UNITS)


def to_words(values: NDArray[np.float64], weight: int, clients: int) -> Words:
    """A weight and the values times it, in fixed point. Cut towards zero: a clipped update stays clipped."""
    if not np.isfinite(values).all():
        raise SecureSumError("The update holds numbers that are not finite, and so cannot be summed: lower train.lr.")
    if values.size and np.abs(values).max() > LARGEST:
        raise SecureSumError(
            f"The update changes a weight by more than {LARGEST:g}, the most that is summed: lower train.lr, or bring "
            "the inputs into a common range."
        )
    if not 0 <= weight <= heaviest(clients):
        raise SecureSumError(
            f"A client of {clients} may weigh {heaviest(clients)} examples at most in a secure sum, or it could "
            'overflow: set method.aggregator = {name = "mean", weights = "equal"}.'
        )
    steps = np.trunc(values * ONE).astype(np.int64) * weight
    return np.concatenate([np.array([weight], np.int64), steps]).view(np.uint64)


def from_words(total: Words) -> tuple[int, NDArray[np.float64]]:
    """The sum of the weights, and the weighted mean of the values."""
    signed = total.view(np.int64)
    weight, steps = int(signed[0]), signed[1:].astype(np.float64)
    if weight < 0 or (steps.size and np.abs(steps).max() > float(weight) * UNITS):
        raise SecureSumError("The secure sum makes no sense: a client did not keep to the protocol. Nothing was used.")
    if weight == 0:
        raise UserError("There is nothing to average: no client sent weights with a positive weight.")
    return weight, steps / ONE / weight


# -- at a client ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Secrets:
    """What a client makes for one sum and tells nobody."""

    cipher: str  # private key by which others' shares are read
    masks: str  # private key of the masks that are shared with the others
    seed: str  # of the client's own mask

    @classmethod
    def new(cls) -> "Secrets":
        """From the operating system's randomness."""
        return cls(_new_key(), _new_key(), _text(os.urandom(32)))

    def public(self) -> PublicKeys:
        """What everybody may know of them."""
        return _public(self.cipher), _public(self.masks)


def check_keys(client: str, own: PublicKeys, keys: Mapping[str, PublicKeys], threshold: int) -> None:
    """Refuse a list of clients in which this one could be singled out."""
    if len(keys) < FEWEST:
        raise SecureSumError(f"A secure sum needs {FEWEST} clients at least, and {len(keys)} were named.")
    if not len(keys) / 2 < threshold <= len(keys):
        raise SecureSumError(f"{threshold} of {len(keys)} is no safe threshold: it must be more than half of them.")
    if tuple(keys.get(client, ())) != own:
        raise SecureSumError("The list of keys does not have this client's own as it sent them.")
    if len({key for pair in keys.values() for key in pair}) < 2 * len(keys):
        raise SecureSumError("The list of keys names the same key twice.")


def shares_for(
    client: str, secrets: Secrets, keys: Mapping[str, PublicKeys], threshold: int
) -> tuple[dict[str, str], tuple[str, str]]:
    """Shares of this client's two secrets for each of the others, encrypted, and the two that it keeps."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    names = sorted(keys)
    seeds = create_shares(_bytes(secrets.seed), threshold, len(names))
    masks = create_shares(_bytes(secrets.masks), threshold, len(names))
    me = names.index(client)
    sealed = {
        name: _text(
            encrypt(
                _agreed(secrets.cipher, keys[name][0]),
                share_keys_plaintext_concat(me, place, seeds[place], masks[place]),
            )
        )
        for place, name in enumerate(names)
        if name != client
    }
    return sealed, (_text(seeds[me]), _text(masks[me]))


def mask(client: str, secrets: Secrets, keys: Mapping[str, PublicKeys], peers: Collection[str], plain: Words) -> Words:
    """The numbers under this client's own mask and those it shares with its peers. They look random to all others."""
    hidden = plain + _stream(_bytes(secrets.seed), plain.size)
    for peer in peers:
        if peer != client:
            hidden += _shared_mask(client, secrets.masks, peer, keys[peer][1], plain.size)
    return hidden


def disclose(
    client: str,
    secrets: Secrets,
    keys: Mapping[str, PublicKeys],
    kept: tuple[str, str],
    sealed: Mapping[str, str],
    stayed: Collection[str],
    left: Collection[str],
) -> tuple[dict[str, str], dict[str, str]]:
    """This client's shares: of the own masks of those who stayed, of the mask keys of those who left."""
    both = set(stayed) & set(left)
    if both:
        raise SecureSumError(
            f"Both secrets of {sorted(both)} were asked for: together they would unmask them. Refused."
        )
    shares = {name: _read_share(client, secrets, keys, name, sealed[name]) for name in sealed if name != client}
    shares[client] = kept
    return {name: shares[name][0] for name in stayed}, {name: shares[name][1] for name in left}


def _read_share(
    client: str, secrets: Secrets, keys: Mapping[str, PublicKeys], sender: str, sealed: str
) -> tuple[str, str]:
    from cryptography.fernet import InvalidToken
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate

    names = sorted(keys)
    try:
        plain = decrypt(_agreed(secrets.cipher, keys[sender][0]), _bytes(sealed))
    except InvalidToken:
        raise SecureSumError(f'The share that "{sender}" is said to have sent was damaged or made up.') from None
    source, target, seed, mask = share_keys_plaintext_separate(plain)
    if (source, target) != (names.index(sender), names.index(client)):
        raise SecureSumError(f'The share that "{sender}" is said to have sent is not from there, or not for here.')
    return _text(seed), _text(mask)


# -- at the server --------------------------------------------------------------------------------------------------


def are_keys(keys: PublicKeys) -> bool:
    """Whether a client sent keys, and not something else that would stop all the others."""
    try:
        return all(_point(key) is not None for key in keys)
    except ValueError:
        return False


def unmask(
    total: Words,
    keys: Mapping[str, PublicKeys],
    stayed: Collection[str],
    seeds: Mapping[str, Sequence[str]],
    masks: Mapping[str, Sequence[str]],
    threshold: int,
) -> Words:
    """The sum of those who stayed, from the sum of what they sent and the shares that were disclosed."""
    opened = total.copy()
    for client in stayed:
        opened -= _stream(_secret(seeds[client], threshold), total.size)
    for gone, shares in masks.items():
        key = _text(_secret(shares, threshold))
        if _public(key) != keys[gone][1]:
            raise SecureSumError(f'The shares of the key of "{gone}" do not make that key. Nothing was opened.')
        for client in stayed:  # what the others added for the one who left is what that one would have taken off
            opened += _shared_mask(gone, key, client, keys[client][1], total.size)
    return opened


def _secret(shares: Sequence[str], threshold: int) -> bytes:
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        return combine_shares([_bytes(share) for share in shares[:threshold]])
    except ValueError:
        raise SecureSumError(
            "The shares of a secret do not fit together: a client did not keep to the protocol."
        ) from None


# -- keys and streams -----------------------------------------------------------------------------------------------


def _new_key() -> str:
    from cryptography.hazmat.primitives.asymmetric import ec

    number = ec.generate_private_key(ec.SECP384R1()).private_numbers().private_value
    return _text(number.to_bytes(48, "big"))


def _private(key: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(int.from_bytes(_bytes(key), "big"), ec.SECP384R1())


def _public(key: str) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return _text(_private(key).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint))


def _agreed(private: str, public: str) -> bytes:
    """The secret that two key pairs have in common, known to their two owners only."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

    return generate_shared_key(_private(private), _point(public))


def _point(public: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), _bytes(public))


def _shared_mask(client: str, private: str, peer: str, public: str, size: int) -> Words:
    """What `client` adds for `peer`: of the two, one adds the stream and the other takes it off."""
    stream = _stream(base64.urlsafe_b64decode(_agreed(private, public)), size)
    return stream if client < peer else np.negative(stream)


def _stream(key: bytes, size: int) -> Words:
    """As many words as wanted, which look random to all who lack the key; each key is used for one stream."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * size))
    return np.frombuffer(block, "<u8").astype(np.uint64)


def _text(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
