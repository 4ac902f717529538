{{- define "jetrelay.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* What selects the pods of a component. (list $ "worker-all") */ -}}
{{- define "jetrelay.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "jetrelay.labels" -}}
{{- $root := index . 0 -}}
{{ include "jetrelay.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- define "jetrelay.config" -}}
{{ required "set config: --set-file config=relay.toml" .Values.config }}
{{- end }}

{{- /* The contexts of relay.toml. */ -}}
{{- define "jetrelay.contexts" -}}
{{- $found := fromToml (include "jetrelay.config" .) -}}
{{- if hasKey $found "Error" }}{{ fail (printf "config: %s" $found.Error) }}{{ end -}}
{{ $found.contexts | default dict | toJson }}
{{- end }}

{{- /* The pools of workers, with all that they do not change, as JSON. */ -}}
{{- define "jetrelay.pools" -}}
{{- $pools := dict }}
{{- range $name, $pool := .Values.pools }}
{{- if kindIs "map" $pool }}
{{- $_ := set $pools $name (mergeOverwrite (deepCopy $.Values.worker) $pool) }}
{{- end }}
{{- end }}
{{- toJson $pools }}
{{- end }}

{{- /* What every pod has: no right in the cluster, no root, nothing to write to but what is mounted. */ -}}
{{- define "jetrelay.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "jetrelay.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The environment and the files of schedulers and workers. */ -}}
{{- define "jetrelay.processEnvironment" -}}
- name: RELAY_CONFIG
  value: /etc/relay/relay.toml
- name: RELAY_LOG_FORMAT
  value: json
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "jetrelay.onceMounts" -}}
- {name: config, mountPath: /etc/relay, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "jetrelay.mounts" -}}
{{ include "jetrelay.onceMounts" . }}
{{- if .Values.secrets.files }}
- {name: secrets, mountPath: /run/secrets/jetrelay, readOnly: true}
{{- end }}
{{- end }}

{{- define "jetrelay.volumes" -}}
- name: config
  configMap: {name: {{ include "jetrelay.fullname" . }}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with .Values.secrets.files }}
- name: secrets
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "jetrelay.readiness" -}}
httpGet: {path: /readyz, port: metrics}
initialDelaySeconds: 2
periodSeconds: {{ .Values.readiness.periodSeconds }}
timeoutSeconds: {{ .Values.readiness.timeoutSeconds }}
failureThreshold: 2
{{- end }}

{{- define "jetrelay.liveness" -}}
httpGet: {path: /healthz, port: metrics}
initialDelaySeconds: 30
periodSeconds: 20
timeoutSeconds: 10
failureThreshold: 3
{{- end }}

{{- define "jetrelay.podAnnotations" -}}
checksum/config: {{ include "jetrelay.config" . | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- with .Values.metrics.annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
