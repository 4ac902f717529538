{{- /*
What KEDA asks, as JSON: (list $ autoscaling contexts). Each trigger asks for one number, and how much of it one pod
is for. Names come from relay.toml.
*/ -}}
{{- define "jetrelay.triggers" -}}
{{- $root := index . 0 }}{{ $scaling := index . 1 }}{{ $contexts := index . 2 }}
{{- $found := list }}
{{- if eq $scaling.per "fleet" }}
  {{- range $what := list "events" "messages" "tasks" }}
    {{- with get $scaling $what }}
      {{- $found = append $found (dict "what" $what "target" .) }}
    {{- end }}
  {{- end }}
{{- else }}
  {{- range $context, $declared := $contexts }}
    {{- range $what := list "events" "tasks" }}
      {{- with get $scaling $what }}
        {{- $found = append $found (dict "what" $what "context" $context "target" .) }}
      {{- end }}
    {{- end }}
    {{- range $name, $subscription := $declared.subscriptions | default dict }}
      {{- with $scaling.messages }}
        {{- $durable := $subscription.durable | default (printf "%s__%s" $context $name) }}
        {{- $found = append $found (dict "what" "messages" "context" $context "subscription" $name "target" .
              "stream" $subscription.stream "durable" $durable) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $triggers := list }}
{{- range $found }}
  {{- if eq $scaling.scaler "metrics-api" }}
    {{- $triggers = append $triggers (fromJson (include "jetrelay.byScale" (list $root .))) }}
  {{- else if eq $scaling.scaler "prometheus" }}
    {{- $triggers = append $triggers (fromJson (include "jetrelay.byPrometheus" (list $scaling .))) }}
  {{- else if .durable }}
    {{- $triggers = append $triggers (fromJson (include "jetrelay.byJetStream" (list $scaling .))) }}
  {{- end }}
{{- end }}
{{- toJson $triggers }}
{{- end }}

{{- define "jetrelay.byScale" -}}
{{- $root := index . 0 }}{{ $one := index . 1 }}
{{- $host := printf "%s-scheduler.%s.svc" (include "jetrelay.fullname" $root) $root.Release.Namespace }}
{{- $url := printf "http://%s:%v/scale" $host $root.Values.metrics.schedulerPort }}
{{- with $one.context }}{{ $url = printf "%s?context=%s" $url . }}{{ end }}
{{- with $one.subscription }}{{ $url = printf "%s&subscription=%s" $url . }}{{ end }}
{{- toJson (dict "type" "metrics-api" "metadata" (dict
      "url" $url
      "valueLocation" $one.what
      "targetValue" (toString (int64 $one.target)))) }}
{{- end }}

{{- define "jetrelay.byPrometheus" -}}
{{- $scaling := index . 0 }}{{ $one := index . 1 }}
{{- $gauges := dict
      "events" "jetrelay_lag_events"
      "messages" "jetrelay_lag_messages"
      "tasks" "jetrelay_lag_tasks" }}
{{- $labels := list }}
{{- with $one.context }}{{ $labels = append $labels (printf "context=%q" .) }}{{ end }}
{{- with $one.subscription }}{{ $labels = append $labels (printf "subscription=%q" .) }}{{ end }}
{{- $query := printf "max by (context, subscription) (%s{%s})" (get $gauges $one.what) (join "," $labels) }}
{{- toJson (dict "type" "prometheus" "metadata" (dict
      "serverAddress" $scaling.prometheus.serverAddress
      "query" (printf "sum(%s)" $query)
      "threshold" (toString (int64 $one.target))
      "ignoreNullValues" "false")) }}
{{- end }}

{{- define "jetrelay.byJetStream" -}}
{{- $scaling := index . 0 }}{{ $one := index . 1 }}
{{- toJson (dict "type" "nats-jetstream" "metadata" (dict
      "natsServerMonitoringEndpoint" $scaling.nats.monitor
      "account" $scaling.nats.account
      "stream" $one.stream
      "consumer" $one.durable
      "useHttps" (toString $scaling.nats.useHttps)
      "lagThreshold" (toString (int64 $one.target)))) }}
{{- end }}
