{{/*
Everything that the processes share. A process is a dict:
  root       the chart's context
  name       of the object, without the release
  component  joiner, learner, keeper, evaluation, relay, server, collector, sink
  model      key of the model; empty for server, collector, sink
  args       of `headrace`
  resources, replicas, scaled (replicas belong to an autoscaler), grace (s)
  env, volumes, mounts, ports (lists of YAML text), probe (port of /health/ready), priority
  models     name of the ConfigMap of specs, without the release; default: models
  serviceAccount; default: the release's
*/}}

{{- define "headrace.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "headrace.image" -}}
{{- $i := .Values.image -}}
{{- if $i.digest -}}
{{ $i.repository }}@{{ $i.digest }}
{{- else -}}
{{ $i.repository }}:{{ $i.tag | default .Chart.AppVersion }}{{ if $i.deep }}-deep{{ end }}
{{- end -}}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
headrace/model: {{ . }}
{{- end }}
{{- end }}

{{- define "headrace.serviceAccount" -}}
{{ .Values.pods.serviceAccountName | default (include "headrace.name" .) }}
{{- end }}

{{/* Settings of one model: its own over the defaults. Takes root and model; returns YAML. */}}
{{- define "headrace.model" -}}
{{- $own := index .root.Values.models .model -}}
{{- mustMergeOverwrite (deepCopy .root.Values.modelDefaults) (deepCopy $own) | toYaml -}}
{{- end }}

{{- define "headrace.spec" -}}
/etc/headrace/models/{{ . }}.toml
{{- end }}

{{/* Addresses and secrets of Kafka and Redis. */}}
{{- define "headrace.env" -}}
- {name: HEADRACE_LOG_FORMAT, value: json}
- {name: HEADRACE_KAFKA, value: {{ .root.Values.kafka.bootstrap | quote }}}
- {name: HEADRACE_REDIS, value: {{ .root.Values.redis.url | quote }}}
{{- with .root.Values.topicsPrefix }}
- {name: HEADRACE_TOPICS_PREFIX, value: {{ . | quote }}}
{{- end }}
{{- with .root.Values.kafka.clientSecret }}
{{- if .name }}
- name: HEADRACE_KAFKA_CLIENT
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .root.Values.redis.loginSecret }}
{{- if .name }}
- name: HEADRACE_REDIS_USER
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .userKey }}}}
- name: HEADRACE_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .passwordKey }}}}
{{- end }}
{{- end }}
{{- end }}

{{- define "headrace.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
image: {{ include "headrace.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: {{ .args | toJson }}
env:
  {{- include "headrace.env" . | nindent 2 }}
  {{- range .env }}
  - {{ . }}
  {{- end }}
  {{- with .root.Values.pods.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - {name: models, mountPath: /etc/headrace/models, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- range .mounts }}
  - {{ . }}
  {{- end }}
  {{- with .root.Values.pods.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .resources }}
resources: {{ toJson . }}
{{- end }}
{{- end }}

{{/* What a pod has besides its containers. */}}
{{- define "headrace.pod" -}}
serviceAccountName: {{ .serviceAccount | default (include "headrace.serviceAccount" .root) }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: [{{ range $i, $n := . }}{{ if $i }}, {{ end }}{name: {{ $n }}}{{ end }}]
{{- end }}
{{- with .priority | default .root.Values.pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext: {{ toJson .root.Values.pods.securityContext }}
{{- with .root.Values.pods.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.pods.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .root.Values.pods.affinity }}
affinity: {{ toJson . }}
{{- end }}
volumes:
  - name: models
    configMap: {name: {{ include "headrace.name" .root }}-{{ .models | default "models" }}}
  - name: tmp
    emptyDir: {sizeLimit: 1Gi}
  {{- range .volumes }}
  - {{ . }}
  {{- end }}
  {{- with .root.Values.pods.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* When pods of a Job that failed are replaced. */}}
{{- define "headrace.podFailurePolicy" -}}
rules:
  # a node that was drained is no failure of the command
  - {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
  # 2: an operator must fix something, and another pod would fail alike. Unreachable servers are 75
  - {action: FailJob, onExitCodes: {operator: In, values: [2]}}
{{- end }}

{{/* The pod template of a process that runs until it is stopped. */}}
{{- define "headrace.podTemplate" -}}
metadata:
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
    {{- with .root.Values.pods.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # a changed spec restarts the processes that read it
    {{- $read := .root.Values.models }}
    {{- if .model }}{{ $read = pick $read .model }}{{ end }}
    headrace/specs: {{ $read | toJson | sha256sum | trunc 16 | quote }}
    {{- with .root.Values.pods.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "headrace.pod" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ .grace | default 30 }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "headrace.selector" . | nindent 10 }}
  containers:
    - name: {{ .component }}
      {{- $env := concat (list "{name: HEADRACE_METRICS_HOST, value: 0.0.0.0}" "{name: HEADRACE_METRICS_PORT, value: \"9100\"}") (.env | default list) }}
      {{- include "headrace.container" (mergeOverwrite (dict) . (dict "env" $env)) | nindent 6 }}
      ports:
        - {name: metrics, containerPort: 9100}
        {{- range .ports }}
        - {{ . }}
        {{- end }}
      # rows are read, and kernels compiled if the image lacks them, before the first answer
      startupProbe:
        httpGet: {path: /health/ready, port: {{ .probe | default "metrics" }}}
        periodSeconds: 2
        failureThreshold: 300
      readinessProbe:
        httpGet: {path: /health/ready, port: {{ .probe | default "metrics" }}}
        periodSeconds: 5
        timeoutSeconds: 3
      livenessProbe:
        httpGet: {path: /health/live, port: {{ .probe | default "metrics" }}}
        periodSeconds: 15
        timeoutSeconds: 5
        failureThreshold: 3
{{- end }}

{{- define "headrace.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "headrace.name" .root }}-{{ .name }}
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "headrace.selector" . | nindent 6 }}
  strategy: {{ .strategy | default "{rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}" }}
  template:
    {{- include "headrace.podTemplate" . | nindent 4 }}
{{- if or .scaled (gt (int .replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "headrace.name" .root }}-{{ .name }}
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "headrace.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Up at once, down by one pod a minute, never to zero: a model without learners is stale. */}}
{{- define "headrace.scalingBehavior" -}}
scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 15}, {type: Pods, value: 4, periodSeconds: 15}]}
scaleDown: {stabilizationWindowSeconds: 300, policies: [{type: Pods, value: 1, periodSeconds: 60}]}
{{- end }}

{{/* By CPU. Takes a process, and min, max, cpu. */}}
{{- define "headrace.hpa" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "headrace.name" .root }}-{{ .name }}
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "headrace.name" .root }}-{{ .name }}}
  minReplicas: {{ .min }}
  maxReplicas: {{ .max }}
  metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ .cpu }}}}
  behavior:
    {{- include "headrace.scalingBehavior" . | nindent 4 }}
{{- end }}

{{/*
By KEDA. Takes a process, and min, max, triggers (YAML text). Optional: formula, over the names of
the triggers, whose result per pod is compared with target.
There is no `fallback`: without one, a trigger that fails keeps the number of pods, and an outage of
Kafka or Prometheus removes none.
*/}}
{{- define "headrace.scaledObject" -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ include "headrace.name" .root }}-{{ .name }}
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
spec:
  scaleTargetRef: {name: {{ include "headrace.name" .root }}-{{ .name }}}
  minReplicaCount: {{ .min }}
  maxReplicaCount: {{ .max }}
  pollingInterval: 10
  advanced:
    {{- with .formula }}
    scalingModifiers:
      formula: {{ . | squote }}
      target: {{ $.target | quote }}
      metricType: AverageValue
    {{- end }}
    horizontalPodAutoscalerConfig:
      behavior:
        {{- include "headrace.scalingBehavior" . | nindent 8 }}
  triggers:
    {{- range .triggers }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* A trigger by the lag of a group of Kafka. Takes root, lag, group, topic. */}}
{{- define "headrace.lagTrigger" -}}
- type: kafka
  name: lag
  {{- with .root.Values.keda.authenticationRef }}
  authenticationRef: {name: {{ . }}}
  {{- end }}
  metadata:
    bootstrapServers: {{ .root.Values.kafka.bootstrap | quote }}
    consumerGroup: {{ .root.Values.topicsPrefix }}{{ .group }}
    topic: {{ .root.Values.topicsPrefix }}{{ .topic }}
    lagThreshold: {{ int64 .lag | quote }}
    {{- with .root.Values.keda.settings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* A trigger by a query of Prometheus, whose empty result is a failure. Takes root, name, query, threshold. */}}
{{- define "headrace.queryTrigger" -}}
{{- $prometheus := .root.Values.keda.prometheus -}}
- type: prometheus
  name: {{ .name }}
  {{- with $prometheus.authenticationRef }}
  authenticationRef: {name: {{ . }}}
  {{- end }}
  metadata:
    serverAddress: {{ $prometheus.address | quote }}
    query: {{ .query | quote }}
    threshold: {{ .threshold | quote }}
    ignoreNullValues: "false"
    {{- with $prometheus.settings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* The name in a spec, which names topics and groups. Takes the text. */}}
{{- define "headrace.modelName" -}}
{{- $line := regexFind "(?m)^\\s*name\\s*=\\s*\"[^\"]+\"" . -}}
{{- $line | regexFind "\"[^\"]+\"" | trimAll "\"" -}}
{{- end }}
