# nomad job run deploy/nomad/filler.nomad.hcl
# Embeds the keys that the servers of archive.nomad.hcl miss, by the same archive.toml.
job "headrace-filler" {
  datacenters = ["*"]
  type        = "service"

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "5s"
    healthy_deadline = "5m"
    auto_revert      = true
  }

  group "filler" {
    count = 2

    network {
      port "metrics" { to = 9100 }
    }

    volume "archive" {
      type      = "host"
      source    = "archive"
      read_only = true
    }

    service {
      name = "headrace-filler"
      port = "metrics"

      check {
        name     = "metrics"
        type     = "http"
        path     = "/metrics"
        interval = "10s"
        timeout  = "5s"
      }
    }

    task "filler" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      # It waits 5 seconds for its embedders, and then gives its keys back to the queue.
      kill_timeout = "20s"

      config {
        # Built with EXTRAS=archive,redis,kafka, and with text or image for embedders of these kinds.
        image           = "registry.example.com/headrace-archive:0.1.0"
        args            = ["archive", "fill", "--archive", "/archive/archive.toml"]
        ports           = ["metrics"]
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]

        # The image's own check asks a server.
        healthchecks {
          disable = true
        }
      }

      env {
        HEADRACE_ARCHIVE_FILL_METRICS_HOST = "0.0.0.0"
        HEADRACE_ARCHIVE_FILL_METRICS_PORT = "9100"
      }

      volume_mount {
        volume      = "archive"
        destination = "/archive"
        read_only   = true
      }

      resources {
        cores  = 2
        memory = 2048
      }
    }
  }
}
