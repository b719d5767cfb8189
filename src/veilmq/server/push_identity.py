"""The server's identity for push receivers: an RSA key that signs pushes, and its certificate.

Both are generated once and kept in the store, for all its servers, or given by the settings. The certificate is
self-signed: receivers fetch it from this server, and trust it as far as they trust that connection.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from veilmq.server.process import open_file
from veilmq.server.pushes import PushError

FILE_NAME = "push.pem"
_KEY_BITS = 2_048
_VALID = timedelta(days=3_650)
_BACKDATED = timedelta(days=1)


class Identity(NamedTuple):
    """A signing key and its certificate."""

    key: rsa.RSAPrivateKey
    certificate_pem: bytes

    def sign(self, text: bytes) -> bytes:
        """Return the signature that the protocol prescribes: RSASSA-PKCS1-v1_5 with SHA-1."""
        return self.key.sign(text, padding.PKCS1v15(), hashes.SHA1())

    def encode(self) -> bytes:
        """Return key and certificate in PEM, for a file."""
        private = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private + self.certificate_pem


def generate(*, now_s: float) -> Identity:
    """Generate an identity; ``now_s`` is the wall clock."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "veilmq pushes")])
    now = datetime.fromtimestamp(now_s, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    return Identity(key, certificate.public_bytes(serialization.Encoding.PEM))


def read(key: Path, certificate: Path) -> Identity:
    """Read the identity from two files, which may be one; raises ``PushError``."""
    try:
        with open_file(key) as private, open_file(certificate) as public:
            return _read(private.read(), public.read(), str(key), str(certificate))
    except OSError as error:
        raise PushError(f"{error.filename} cannot be read: {error.strerror}.") from None


def _read(key_pem: bytes, certificate_pem: bytes, key: str, certificate: str) -> Identity:
    try:
        private = serialization.load_pem_private_key(key_pem, password=None)
        public = x509.load_pem_x509_certificate(certificate_pem)
    except (ValueError, TypeError) as error:
        raise PushError(f"{key} and {certificate} must be a key and a certificate in PEM: {error}.") from None
    if not isinstance(private, rsa.RSAPrivateKey):
        raise PushError(f"{key} must be an RSA key: pushes are signed with RSA and SHA-1.")
    if public.public_key() != private.public_key():
        raise PushError(f"{certificate} is not the certificate of {key}.")
    return Identity(private, public.public_bytes(serialization.Encoding.PEM))


def decode(pem: bytes) -> Identity:
    """Read the identity from the output of ``Identity.encode``; raises ``PushError``."""
    return _read(pem, pem, "What the store keeps", "it")
