# Two hosts (network namespaces: needs root). Gloo uses the host name's interface: here, loopback.
[ "$HEAD" ] || HEAD=1 exec unshare --net bash broken.sh "$1"
unshare --net sleep 300 &
worker="nsenter --net --target $!"
trap 'kill $(jobs -p) 2>/dev/null' EXIT
sleep 0.5
ip link add eth0 type veth peer eth0 netns $!
ip address add 10.0.0.1/24 dev eth0
$worker ip address add 10.0.0.2/24 dev eth0
for link in lo eth0; do ip link set $link up; $worker ip link set $link up; done
export MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
RANK=0 python "$1" & rank0=$!
RANK=1 $worker python "$1" & wait $rank0 $!
