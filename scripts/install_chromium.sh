#!/bin/sh
# Install Chromium for the browser tests. This works as root on Debian and Ubuntu; otherwise print how to get it.
# The script never fails, because the tests decide whether they may be skipped without Chromium.
# Usage: scripts/install_chromium.sh PYTHON
set -u
python=${1:?usage: scripts/install_chromium.sh PYTHON}
cd "$(dirname "$0")/.." || exit 0

if answer=$("$python" -m tests.browser); then
  echo "browser tests use $answer"
  exit 0
fi

distribution=$(sed -n 's/^ID=//p' /etc/os-release 2>/dev/null | tr -d '"')
if [ "$(id -u)" -ne 0 ]; then
  distribution=
fi
case $distribution in
  debian)
    # Without a font, every character is drawn as an empty box.
    export DEBIAN_FRONTEND=noninteractive
    apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core
    ;;
  ubuntu)
    # Ubuntu's own package only redirects to snap, which containers do not have.
    "$python" -m playwright install --with-deps chromium
    ;;
  *)
    false
    ;;
esac || echo "$answer"
exit 0
