{{/* What all objects are called after. */}}
{{- define "mainspring.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Of a role's pods; never changes. Takes root and role. */}}
{{- define "mainspring.selector" -}}
app.kubernetes.io/name: mainspring
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "mainspring.labels" -}}
{{ include "mainspring.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "mainspring.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{/* A variable from the Secret. Takes root, variable and key. */}}
{{- define "mainspring.from-secret" -}}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.secret }}
      key: {{ .key }}
{{- end }}

{{/* The variable of a setting. */}}
{{- define "mainspring.variable" -}}
MAINSPRING_{{ . | upper | replace "." "_" }}
{{- end }}

{{/* Settings that pods are made around, each with what to use instead. */}}
{{- define "mainspring.owned" -}}
store: use the key store of the Secret
host: an API listens to all addresses of its pod
port: use api.service.port
worker.grace: use graceSeconds of worker or of workers
worker.queues: use queues of workers
metrics.enabled: probes need it
metrics.host: probes and scrapers need all addresses of the pod
metrics.first_port: it is 7170
metrics.last_port: it is 7170
metrics.token: use the key metrics-token of the Secret
metrics.token_file: use the key metrics-token of the Secret
ui.secret: use the key ui-secret of the Secret
{{- end }}

{{/* What every role is told. */}}
{{- define "mainspring.env" -}}
{{ include "mainspring.from-secret" (dict "root" . "variable" "MAINSPRING_STORE" "key" "store") }}
{{- range $name, $value := .Values.settings }}
{{- /* Helm reads every number as a float, and would write a large one as 1e+09. */}}
{{- $whole := and (kindIs "float64" $value) (eq $value (floor $value)) }}
- name: {{ include "mainspring.variable" $name }}
  value: {{ ternary (int64 $value) $value $whole | toString | quote }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Schedulers and workers: one port, for the kubelet and for whoever scrapes. */}}
{{- define "mainspring.metrics-env" -}}
- name: MAINSPRING_METRICS_HOST
  value: "0.0.0.0"
- name: MAINSPRING_METRICS_FIRST_PORT
  value: "7170"
- name: MAINSPRING_METRICS_LAST_PORT
  value: "7170"
{{ include "mainspring.from-secret" (dict "root" . "variable" "MAINSPRING_METRICS_TOKEN" "key" "metrics-token") }}
{{- end }}

{{/* Of every pod. */}}
{{- define "mainspring.pod" -}}
automountServiceAccountToken: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
# A service called mainspring-… would be told as variables that look like settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: tmp
    emptyDir: {}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of every container. */}}
{{- define "mainspring.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* How a number of workers changes. */}}
{{- define "mainspring.behavior" -}}
# At most twice as many at a time; fewer when fewer have been enough for a minute. As --autoscale does it.
scaleUp:
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
scaleDown:
  stabilizationWindowSeconds: 60
  policies:
    - {type: Percent, value: 25, periodSeconds: 30}
    - {type: Pods, value: 1, periodSeconds: 30}
{{- end }}

{{/* Not all on one node, nor in one zone, as far as there are several. Takes root and role. */}}
{{- define "mainspring.spread" -}}
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "mainspring.selector" $ | nindent 8 }}
{{- end }}
{{- end }}

{{/* Of a process without an API: it lives while its event loop turns. It answers as soon as it has begun to work. */}}
{{- define "mainspring.metrics-probes" -}}
ports:
  - name: metrics
    containerPort: 7170
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 9
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 9
  failureThreshold: 6
{{- end }}
