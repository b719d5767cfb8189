"""An S3 server on this machine: versitygw, as scripts/install-bucket.sh builds it.

It stores objects as files and supports conditional writes (`If-None-Match: *`), as S3 has since 2024.
"""

from pathlib import Path

from tests.proofs.served import Served
from tests.tidy.tree import ROOT

HOME = ROOT / ".clients" / "bucket"
GATEWAY = HOME / "versitygw"
HOW = "scripts/install-bucket.sh (make setup-bucket)"

ACCESS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests-secret", "AWS_REGION": "us-east-1"}


def jars() -> list[Path]:
    """Return the jars with which Spark reaches S3, if they are installed."""
    return sorted((HOME / "jars").glob("*.jar"))


class S3Server(Served):
    """versitygw on `folder`; it can be restarted at the same port with the same objects."""

    def __init__(self, folder: Path) -> None:
        super().__init__(log=folder.with_suffix(".log"))
        self._folder = folder
        self._folder.mkdir(parents=True)
        self.environment = {"ROOT_ACCESS_KEY": ACCESS["AWS_ACCESS_KEY_ID"]}
        self.environment["ROOT_SECRET_KEY"] = ACCESS["AWS_SECRET_ACCESS_KEY"]

    def command(self) -> list[str]:
        return [str(GATEWAY), "--port", f"127.0.0.1:{self.port}", "posix", str(self._folder)]

    def bucket(self, name: str) -> str:
        """Create an empty bucket (3 to 63 characters); return its URL."""
        (self._folder / name).mkdir()
        return f"s3://{name}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment for AWS clients (deltalake, pyarrow, boto3)."""
        return ACCESS | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def settings(self) -> dict[str, str]:
        """The settings for Spark, which takes the keys from the environment."""
        return {
            "spark.jars": ",".join(str(jar) for jar in jars()),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": ACCESS["AWS_REGION"],
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
