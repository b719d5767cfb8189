# Sourced by the scripts that install pinned dependencies of tests into a folder under .clients. Set before:
#   folder=$PWD/.clients/... tests="the tests of ..."

# install NAME PLACE WANTED COMMAND...: recreate PLACE with COMMAND, unless a stamp in the folder names the version WANTED. An
# interrupted installation has no stamp. It never fails: it reports what is missing and why.
install() {
    name=$1 place=$2 wanted=$3 stamp=$folder/$1.stamp
    shift 3
    if [ -e "$place" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    rm -rf "$stamp" "$place"
    echo "veilmq: installing $name for $tests"
    if "$@" >"$folder/$name.log" 2>&1; then
        echo "$wanted" >"$stamp"
    else
        echo "veilmq: could not install $name, $tests that need it will not run; the reason:" >&2
        tail -n 15 "$folder/$name.log" >&2
    fi
}

# has_go WHAT: succeed if Go, which builds WHAT, is installed; otherwise report where to get it.
has_go() {
    command -v go >/dev/null 2>&1 && return 0
    {
        echo "veilmq: $tests need Go 1.26 or newer, to build $1; without it, they do not run."
        echo "  macOS:           brew install go"
        echo "  elsewhere:       https://go.dev/dl"
    } >&2
    return 1
}
