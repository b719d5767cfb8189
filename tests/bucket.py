"""A real S3 server on this machine, with buckets of its own: versitygw, as scripts/install-bucket.sh builds it.

It keeps objects as files and knows conditional writes (`If-None-Match: *`), which S3 has had since 2024.
"""

from pathlib import Path

from tests.proofs.served import Served
from tests.tidy.tree import ROOT

HOME = ROOT / ".clients" / "bucket"
GATEWAY = HOME / "versitygw"
HOW = "scripts/install-bucket.sh (make setup-bucket)"

ACCESS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests-secret", "AWS_REGION": "us-east-1"}


def jars() -> list[Path]:
    """Return the jars with which Spark reaches S3; none where they are not installed."""
    return sorted((HOME / "jars").glob("*.jar"))


class S3Server(Served):
    """versitygw on `folder`; one that is killed starts again at the same port, with the same objects."""

    def __init__(self, folder: Path) -> None:
        super().__init__(log=folder.with_suffix(".log"))
        self._folder = folder
        self._folder.mkdir(parents=True)
        self.environment = {"ROOT_ACCESS_KEY": ACCESS["AWS_ACCESS_KEY_ID"]}
        self.environment["ROOT_SECRET_KEY"] = ACCESS["AWS_SECRET_ACCESS_KEY"]

    def command(self) -> list[str]:
        """Return what starts it."""
        return [str(GATEWAY), "--port", f"127.0.0.1:{self.port}", "posix", str(self._folder)]

    def bucket(self, name: str) -> str:
        """Make an empty bucket (its name has 3 to 63 characters); return its URL."""
        (self._folder / name).mkdir()
        return f"s3://{name}"

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment with which clients of AWS (deltalake, pyarrow, boto3) reach it."""
        return ACCESS | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings with which Spark reaches it; the keys it takes from the environment."""
        return {
            "spark.jars": ",".join(str(jar) for jar in jars()),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": ACCESS["AWS_REGION"],
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
