#!/bin/bash
# Build the complete, genuine kube-apiserver 1.20.2 from bookworm's own source package into $1, as kube-apiserver-1.20. Three minutes and more.
# $2 is scratch: 3 GB, removed unless it is given.
set -euo pipefail
command -v dpkg-source > /dev/null || { echo "build-genuine: this machine has no dpkg-source (Debian: dpkg-dev)" >&2; exit 1; }
out=$(mkdir -p "$1" && cd "$1" && pwd)
if [ -n "${2:-}" ]; then work=$2; else work=$(mktemp -d); trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT; fi
mkdir -p "$work"/{apt/lists/partial,apt/cache/archives/partial,debs,go,home,gopath/src/k8s.io}
mirror=$(sed -n 's/^URIs: *//p; s/^deb [^h]*\(http[^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | grep -v security | head -1 || true)
[ -n "$mirror" ] || { echo "build-genuine: no Debian mirror in this machine's apt sources" >&2; exit 1; }
key=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
printf 'deb [%s] %s bookworm main\ndeb-src [%s] %s bookworm main\n' "$key" "$mirror" "$key" "$mirror" > "$work/apt/sources.list"
options=(-oDir::Etc::sourcelist="$work/apt/sources.list" -oDir::Etc::sourceparts=/dev/null -oDir::State::Lists="$work/apt/lists"
  -oDir::Cache="$work/apt/cache" -oAPT::Sandbox::User=root)
if ! apt-get "${options[@]}" -qq update 2> "$work/update.log"; then
  # a mirror that stands still has signed metadata that is past its date; anything else is fatal
  grep -q "is expired" "$work/update.log" || { cat "$work/update.log" >&2; exit 1; }
  echo "build-genuine: the mirror's metadata is past its date; going on, as it is signed" >&2
  options+=(-oAcquire::Check-Valid-Until=false)
  apt-get "${options[@]}" -qq update
fi
(cd "$work" && apt-get "${options[@]}" -qq source --download-only kubernetes && dpkg-source --no-check -x kubernetes_*.dsc k)
(cd "$work/debs" && apt-get "${options[@]}" -qq download {golang-1.19-go,golang-1.19-src,rsync,libpopt0,libxxhash0,golang-github-modern-go-reflect2-dev}/bookworm)
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/go"; done
reflect2=$work/k/vendor/github.com/modern-go/reflect2   # 1.0.1 crashes with Go 1.18 and newer (it walks maps); Debian's own is 1.0.2
find "$reflect2" \( -name '*.go' -o -name '*.s' \) -delete
cp "$work"/go/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$reflect2/"
rm -f "$reflect2"/*_test.go
ln -sfn "$work/k" "$work/gopath/src/k8s.io/kubernetes"
export GOROOT=$work/go/usr/lib/go-1.19 PATH=$work/go/usr/lib/go-1.19/bin:$work/go/usr/bin:$PATH GOPATH=$work/gopath GOCACHE=$work/gocache
export GO111MODULE=off GOFLAGS='' CGO_ENABLED=0 HOME=$work/home LD_LIBRARY_PATH=$work/go/usr/lib/x86_64-linux-gnu
cd "$work/gopath/src/k8s.io/kubernetes"
make WHAT=cmd/kube-apiserver GOLDFLAGS='-s -w'
install -m755 _output/local/bin/linux/amd64/kube-apiserver "$out/kube-apiserver-1.20"
