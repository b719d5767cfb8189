#!/bin/sh
# Installs the dependencies of `make prove-image` if that needs no password: buildah and podman, and a base for the image
# from Debian's packages, .clients/image/base.tar, so that no registry of images is needed. Skips what is installed.
# Never fails: it reports what is missing; those tests then skip on a laptop and fail in CI.
set -eu
. "${0%/*}/packages.sh"
cd "${0%/*}/.."

base=.clients/image/base.tar
APT_UPDATED=${APT_UPDATED:-$(mktemp -u)}

for program in buildah podman crun mmdebstrap; do
    command -v "$program" >/dev/null 2>&1 || install_package "$program" "$program" "$program" "$program"
done

# Leave out manuals and translations, as slim images do.
if [ ! -f "$base" ] && command -v mmdebstrap >/dev/null 2>&1 && may_be_root; then
    mkdir -p "${base%/*}"
    echo "veilmq: making a base for the image from Debian's packages"
    if as_root mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$base.part.tar"; then
        mv "$base.part.tar" "$base"
    fi
fi

if [ ! -f "$base" ] || ! command -v buildah >/dev/null 2>&1 || ! command -v podman >/dev/null 2>&1; then
    {
        echo "veilmq: \`make prove-image\` needs root, buildah, podman, and mmdebstrap for a base of Debian's packages."
        echo "  Debian, Ubuntu:  sudo apt-get install buildah podman crun mmdebstrap, then make prove-image as root"
    } >&2
fi
