# nomad job run deploy/nomad/archive.nomad.hcl
# The host volume `archive` has archive.toml. Its store and queue are on other machines: here, Redis and Kafka.
job "headrace-archive" {
  datacenters = ["*"]
  type        = "service"

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "5s"
    healthy_deadline = "5m"
    auto_revert      = true
  }

  group "archive" {
    count = 3

    # Nomad takes the server out of its catalog, waits this long, and then sends SIGTERM.
    shutdown_delay = "5s"

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    network {
      port "http" { to = 8501 }
      port "grpc" { to = 8500 }
    }

    volume "archive" {
      type      = "host"
      source    = "archive"
      read_only = true
    }

    service {
      name = "headrace-archive-http"
      port = "http"

      check {
        name     = "ready"
        type     = "http"
        path     = "/v2/health/ready"
        interval = "2s"
        timeout  = "2s"
      }

      check {
        name     = "live"
        type     = "http"
        path     = "/v2/health/live"
        interval = "10s"
        timeout  = "5s"

        # It has not answered for half a minute, so nobody else gets answers either.
        check_restart {
          limit = 3
          grace = "60s"
        }
      }
    }

    service {
      name = "headrace-archive-grpc"
      port = "grpc"

      check {
        name     = "ready"
        type     = "http"
        path     = "/v2/health/ready"
        interval = "2s"
        timeout  = "2s"
      }
    }

    task "archive" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      # drain_seconds, and 10 seconds to spare.
      kill_timeout = "40s"

      config {
        # Built with EXTRAS=archive,redis,kafka.
        image           = "registry.example.com/headrace-archive:0.1.0"
        args            = ["archive", "serve", "--archive", "/archive/archive.toml"]
        ports           = ["http", "grpc"]
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }

      env {
        # The image sets these two for `headrace serve` only.
        HEADRACE_ARCHIVE_SERVE_HOST       = "0.0.0.0"
        HEADRACE_ARCHIVE_SERVE_LOG_FORMAT = "json"

        HEADRACE_ARCHIVE_SERVE_DRAIN_SECONDS      = "30"
        HEADRACE_ARCHIVE_SERVE_DRAIN_LEAD_SECONDS = "2"
      }

      volume_mount {
        volume      = "archive"
        destination = "/archive"
        read_only   = true
      }

      resources {
        # Whole processors of its own: headrace has as many threads as it may use processors.
        cores  = 2
        memory = 2048
      }
    }
  }
}
