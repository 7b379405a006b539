#!/bin/sh
# Make what compose.secure.yaml mounts: a CA, one certificate for all servers, and the keys of two Super users.
#
#   deploy/secure.sh [DIR]        default deploy/secure; what is there already stays
#
# As root, for the files are for the image's user (10001) alone to read. Needs openssl. TANDEM_NET and TANDEM_HOST as in
# compose.yaml: addresses that clients use must be in the certificate.
set -eu
cd "$(dirname "$0")"
into=${1:-secure}
net=${TANDEM_NET:-172.29.88}
user=10001

if [ "$(id -u)" != 0 ]; then
    echo "secure.sh: must be root, to give the files to user $user of the image" >&2
    exit 1
fi
mkdir -p "$into"
cd "$into"
umask 077
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
secret() { openssl rand -hex 24; }

if [ ! -e ca.key ]; then
    openssl req -x509 $key -keyout ca.key -out ca.pem -days 3650 -subj "/CN=TandemMQ CA" \
        -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
fi
if [ ! -e server.pem ]; then
    names="DNS:localhost,IP:127.0.0.1,DNS:namesrv-a,DNS:namesrv-b"
    for last in 2 3 10 11 20 21; do names="$names,IP:$net.$last"; done
    case "${TANDEM_HOST:-}" in
        '') ;;
        *[!0-9.]*) names="$names,DNS:$TANDEM_HOST" ;;
        *) names="$names,IP:$TANDEM_HOST" ;;
    esac
    openssl req $key -keyout server.key -out server.csr -subj "/CN=tandemmq" 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names" >server.ext
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 \
        -extfile server.ext -out server.pem 2>/dev/null
    rm server.csr server.ext
fi
if [ ! -e root.json ]; then
    root=$(secret)
    printf '{"username":"root","password":"%s"}\n' "$root" >root.json
    printf 'accessKey: root\nsecretKey: %s\n' "$root" >tools.yml
    printf '{"accessKey":"inner","secretKey":"%s"}\n' "$(secret)" >inner.json
fi
chown $user:$user . server.key server.pem root.json inner.json ca.pem
chmod 0755 .
chmod 0644 ca.pem
echo "made $(pwd): keep ca.key away from here; clients need ca.pem and tools.yml"
