#!/bin/sh
# Make the images that deploy/Dockerfile starts from, out of Debian's packages, where no image registry answers:
#
#   deploy/base.sh                       makes tandemmq-base:local and tandemmq-base:build, and prints what to do next
#   deploy/base.sh --files-only DIR      only the two archives, without a docker daemon; a second run loads them
#
# tandemmq-base:local is Debian with python3. tandemmq-base:build has a compiler on top, and the Python packages that
# the build asks for, so that building the image reaches for nothing outside. SUITE names another release of Debian.
# Needs root, mmdebstrap (apt-get install mmdebstrap), and Debian's and Python's package indexes.
set -eu

cd "$(dirname "$0")/.."
load=yes
if [ "${1:-}" = --files-only ]; then
    load=no
    shift
fi
into=${1:-.cache/base}
suite=${SUITE:-$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")}
runtime=python3,ca-certificates
mkdir -p "$into"

if ! command -v mmdebstrap >/dev/null; then
    echo "base.sh: mmdebstrap is not installed: apt-get install mmdebstrap" >&2
    exit 11
fi

# NAME PACKAGES [OPTIONS of mmdebstrap]: $into/NAME.tar unless it is there
debian() {
    name=$1 packages=$2
    shift 2
    [ -s "$into/$name.tar" ] && return
    echo "base.sh: making $into/$name.tar of Debian $suite" >&2
    if ! mmdebstrap --format=tar --variant=minbase --include="$packages" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' \
        "$@" "$suite" "$into/$name.tar.new" 2>"$into/$name.log"; then
        tail -n 20 "$into/$name.log" >&2
        exit 1
    fi
    mv "$into/$name.tar.new" "$into/$name.tar"
}

# What the build asks pip for: its own tools, and what servers need. The certificates there are this
# machine's: its network may have an authority of its own.
python3 - >"$into/packages.txt" <<'PY'
import tomllib

settings = tomllib.load(open("pyproject.toml", "rb"))
project = settings["project"]
print("\n".join((*settings["build-system"]["requires"], *project["dependencies"],
                 *project["optional-dependencies"]["server"])))
PY
# an archive that holds other packages is made again
if ! cmp -s "$into/packages.txt" "$into/packages.made"; then rm -f "$into/build.tar"; fi
download='chroot "$1" python3 -m pip download -q --no-cache-dir --only-binary :all: -d /wheels -r /tmp/packages.txt'
certificates=/etc/ssl/certs/ca-certificates.crt
debian local "$runtime" &
first=$!
trap 'wait "$first" || true' EXIT  # killed it would leave mounts behind
debian build "$runtime,gcc,libc6-dev,python3-dev,python3-venv,python3-pip" \
    --customize-hook="copy-in $into/packages.txt /tmp" \
    --customize-hook="upload $certificates $certificates" \
    --customize-hook="env -u PIP_FIND_LINKS $download" \
    --customize-hook='rm "$1/tmp/packages.txt"'
cp "$into/packages.txt" "$into/packages.made"
trap - EXIT
wait "$first"

[ "$load" = yes ] || exit 0
docker import --change 'CMD ["python3"]' "$into/local.tar" tandemmq-base:local >/dev/null
docker import --change 'ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels' "$into/build.tar" tandemmq-base:build >/dev/null
echo "docker build -f deploy/Dockerfile -t tandemmq" \
    "--build-arg BASE_IMAGE=tandemmq-base:local --build-arg BUILD_IMAGE=tandemmq-base:build ."
