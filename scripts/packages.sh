# Sourced by the scripts that install a system program for tests if that needs no password:
#   install_package BREW APT DNF APK
# Each argument has the names of the package for that package manager; the first available one is installed. It never fails:
# the caller checks for the program afterwards and reports what to install.

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_be_root() { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }; }

# $APT_UPDATED, if set, names a file that exists once the lists are updated.
with_apt() {
    if [ ! -e "${APT_UPDATED:-}" ]; then
        as_root apt-get update -qq
        : >"${APT_UPDATED:-/dev/null}"
    fi
    for package in $1; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
                --no-install-recommends "$package"
            return
        fi
    done
}

install_package() {
    if command -v brew >/dev/null 2>&1; then
        # shellcheck disable=SC2086 # an option may precede the name
        brew install $1 || true
    elif command -v apt-get >/dev/null 2>&1 && may_be_root; then
        with_apt "$2" || true
    elif command -v dnf >/dev/null 2>&1 && may_be_root; then
        as_root dnf install -y -q "$3" || true
    elif command -v apk >/dev/null 2>&1 && may_be_root; then
        as_root apk add -q "$4" || true
    fi
}
