{{/* Labels that a selector may use: they never change. Pods have no others, lest each new chart restarts all of them.
     Takes (dict "root" $ "component" "math"). */}}
{{- define "guerdon.selector" -}}
app.kubernetes.io/name: guerdon
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "guerdon.labels" -}}
{{ include "guerdon.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* process_reward -> guerdon-process-reward */}}
{{- define "guerdon.name" -}}
{{ include "guerdon.short" (printf "%s-%s" .root.Release.Name .component) }}
{{- end }}

{{/* A name for Services and whatever gives pods theirs: 52 characters, so that a hash or an index still fits behind it. */}}
{{- define "guerdon.short" -}}
{{- $name := . | replace "_" "-" | replace "." "-" -}}
{{ ternary $name (printf "%s-%s" ($name | trunc 43 | trimSuffix "-") ($name | sha256sum | trunc 8)) (le (len $name) 52) }}
{{- end }}

{{/* Numbers as YAML 1.1 reads them: 1e-06 without a dot would be a text. */}}
{{- define "guerdon.numbers" -}}
{{ regexReplaceAll "(?m)((?:^|: |- )-?[0-9]+)(e[-+][0-9]+)$" . "${1}.0${2}" }}
{{- end }}

{{/* A service's block over the defaults. Takes (dict "root" $ "service" .block); YAML. */}}
{{- define "guerdon.settled" -}}
{{ mergeOverwrite (deepCopy .root.Values.serviceDefaults) (deepCopy (.service | default dict)) | toYaml }}
{{- end }}

{{/* The build with CUDA has a tag that says so. Takes (dict "root" $ "image" .image "component" "math" "gpu" 0). */}}
{{- define "guerdon.image" -}}
{{- $image := .root.Values.image -}}
{{- $repository := printf "%s/guerdon-%s" $image.registry (default .component .image.target | replace "_" "-") -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .root.Chart.AppVersion $image.tag }}{{ ternary "-cuda" "" (gt (int .gpu) 0) }}
{{- end }}
{{- end }}

{{/* The restricted Pod Security profile, for the pod. */}}
{{- define "guerdon.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with int .Values.runAsUser }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* And for each container. */}}
{{- define "guerdon.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "guerdon.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpu -}}
{{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" .gpu) ($resources.limits | default dict)) -}}
{{- end -}}
resources: {{- toYaml $resources | nindent 2 }}
{{- end }}

{{/* Where the queue is: REDIS_PASSWORD and the variable named, or the variable from a secret. */}}
{{- define "guerdon.queueEnv" -}}
{{- if .secret -}}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: url}}
{{- else if .root.Values.redis.enabled -}}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .root.Values.redis.secret }}, key: password}}
- name: {{ .variable }}
  value: redis://:$(REDIS_PASSWORD)@{{ include "guerdon.name" (dict "root" .root "component" "redis") }}:6379/0
{{- else -}}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.redis.external.secret }}, key: url}}
{{- end }}
{{- end }}

{{- define "guerdon.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "guerdon.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The classes are of the whole cluster: their names hold the namespace. */}}
{{- define "guerdon.priorityClass" -}}
{{ printf "%s-%s-%s" .root.Release.Namespace .root.Release.Name .class }}
{{- end }}

{{- define "guerdon.priority" -}}
{{- $classes := .root.Values.priorityClasses -}}
{{- with get $classes .class | default (ternary (include "guerdon.priorityClass" .) "" $classes.create) -}}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Variables of the values; text may be a template. Takes (dict "root" $ "env" .env). */}}
{{- define "guerdon.env" -}}
{{- with .env }}
{{ tpl (toYaml .) $.root }}
{{- end }}
{{- end }}

{{/* /dev/shm. Takes (dict "shm" .shm). */}}
{{- define "guerdon.shm" -}}
{{- with .shm }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . }}}
{{- end }}
{{- end }}
