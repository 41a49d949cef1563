# nomad job run deploy/nomad/server.nomad.hcl
job "headrace" {
  datacenters = ["*"]
  type        = "service"

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "5s"
    healthy_deadline = "5m"
    auto_revert      = true
  }

  group "headrace" {
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

    volume "models" {
      type      = "host"
      source    = "models"
      read_only = true
    }

    service {
      name = "headrace-http"
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
      name = "headrace-grpc"
      port = "grpc"

      check {
        name     = "ready"
        type     = "http"
        path     = "/v2/health/ready"
        interval = "2s"
        timeout  = "2s"
      }
    }

    task "headrace" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      # drain_seconds, and 10 seconds to spare.
      kill_timeout = "40s"

      config {
        image           = "registry.example.com/headrace:0.1.0"
        args            = ["serve", "/models"]
        ports           = ["http", "grpc"]
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }

      env {
        HEADRACE_SERVE_DRAIN_SECONDS      = "30"
        HEADRACE_SERVE_DRAIN_LEAD_SECONDS = "2"
      }

      volume_mount {
        volume      = "models"
        destination = "/models"
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
