{{- define "compactor.labels" -}}
app.kubernetes.io/name: compactor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "compactor.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "compactor.environment" -}}
- name: COMPACTOR_DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
- name: COMPACTOR_STORE
  value: {{ .Values.store.url | quote }}
{{- with .Values.store.endpoint }}
- name: COMPACTOR_S3_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "compactor.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- with .Values.store.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}
