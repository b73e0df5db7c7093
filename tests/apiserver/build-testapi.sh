#!/bin/bash
# Build an API server for tests from Debian's packages alone, into $1: kube-apiserver (README.md says what it is and isn't), etcd, kubectl.
# The machine's own apt configuration, and its installed packages, are left as they are. $2 is scratch: 2 GB, removed unless it is given.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
suite=${SUITE:-sid}
if [ -n "${2:-}" ]; then work=$2; else work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi
mkdir -p "$work"/{apt/lists/partial,apt/cache/archives/partial,debs,root,gopath/src/testapi/openapi}
mirror=$(sed -n 's/^URIs: *//p; s/^deb [^h]*\(http[^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | grep -v security | head -1 || true)
[ -n "$mirror" ] || { echo "build-testapi: no Debian mirror in this machine's apt sources" >&2; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$work/apt/sources.list"
options=(-oDir::Etc::sourcelist="$work/apt/sources.list" -oDir::Etc::sourceparts=/dev/null -oDir::State::Lists="$work/apt/lists"
  -oDir::Cache="$work/apt/cache" -oAPT::Sandbox::User=root -oAcquire::Languages=none)
if ! apt-get "${options[@]}" -qq update 2> "$work/update.log"; then
  # a mirror that stands still has signed metadata that is past its date; anything else is fatal
  grep -q "is expired" "$work/update.log" || { cat "$work/update.log" >&2; exit 1; }
  echo "build-testapi: the mirror's metadata is past its date; going on, as it is signed" >&2
  options+=(-oAcquire::Check-Valid-Until=false)
  apt-get "${options[@]}" -qq update
fi
(cd "$work/debs" && sed "s#\$#/$suite#" "$here/testapi/packages.txt" | xargs apt-get "${options[@]}" -qq download)
for deb in "$work"/debs/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/root" --exclude=./usr/share/doc --exclude=./usr/share/man --exclude='*_test.go' --exclude=testdata
done
GOROOT=$(echo "$work"/root/usr/lib/go-1.*)
export GOROOT GOPATH=$work/gopath:$work/root/usr/share/gocode GO111MODULE=off GOCACHE=$work/gocache GOFLAGS='' GOTOOLCHAIN=local CGO_ENABLED=0
export PATH=$GOROOT/bin:$PATH HOME=$work
cp "$here"/testapi/*.go "$work/gopath/src/testapi/"
cd "$work/gopath/src/testapi"
echo > "$work/header.txt"
api=k8s.io/api machinery=k8s.io/apimachinery/pkg
"$work/root/usr/bin/openapi-gen" --output-dir openapi --output-pkg testapi/openapi --output-file zz_generated.openapi.go \
  --go-header-file "$work/header.txt" -r "$work/violations.txt" \
  $api/{core,apps,batch,coordination,rbac,events,admissionregistration,authentication,authorization,policy,networking,discovery,scheduling,autoscaling}/v1 \
  $api/autoscaling/v2 k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/{v1,v1beta1} \
  $machinery/apis/meta/v1 $machinery/runtime $machinery/version $machinery/api/resource $machinery/util/intstr
version=$(sed -n 's/.*golang-k8s-apiserver-dev_0\.\([0-9]*\)\.\([0-9]*\)-.*/\1.\2/p' <<<"$(ls "$work"/debs/golang-k8s-apiserver-dev_*)")
base=k8s.io/component-base/version
go build -trimpath -ldflags "-s -w -X $base.gitVersion=v1.$version -X $base.gitMajor=1 -X $base.gitMinor=${version%%.*}" -o "$work/kube-apiserver" testapi
install -m755 "$work/root/usr/bin/etcd" "$work/root/usr/bin/kubectl" "$out/"
install -m755 "$work/kube-apiserver" "$out/"
