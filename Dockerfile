# The program `leasehold` alone, for a pod of its own or for the image of a job:
#
#     scripts/release && docker build --tag leasehold .
#     COPY --from=leasehold /leasehold /usr/local/bin/
#
# The binary is static and needs nothing of a system. There are no root certificates here, so a `rediss://` URL names its own by
# `?cacert=`.
FROM scratch
COPY target/release-files/leasehold /leasehold
ENTRYPOINT ["/leasehold"]
